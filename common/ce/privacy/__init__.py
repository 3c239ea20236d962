"""Keys between sites, masks, and pseudonyms. These modules know bytes only: no model, no label table."""
