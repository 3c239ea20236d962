"""Array kernels: pure functions over plain arrays, each object computed independently of its neighbours.

That independence is a promise, not a style: an object must get the same bits alone, in a block of ten or in a block of
a million, or different layouts would not agree.
"""
