"""How messages travel between sites and their home: encoded as the wire contract says, in one process or over gRPC.

A transport knows nothing of models, labels or what a round is for.
"""
