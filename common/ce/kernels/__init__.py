"""Array kernels: pure functions over plain arrays. Each object is computed independently of the others.

An object must get the same bits alone, in a block of ten and in a block of a million; otherwise the results of
different layouts would differ.
"""
