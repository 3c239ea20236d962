"""Keys between sites, masks, pseudonyms, and the kernels of sealed jobs: products, noise, argmax.

These modules know bytes and words only: no model, no label table, no transport.
"""
