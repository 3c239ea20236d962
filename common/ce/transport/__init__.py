"""How messages travel between sites and their home: encoded as the wire contract says, in one process or over gRPC.

A transport knows nothing of models, labels or what a round is for.

gRPC reads its settings from the environment, once, when it is first imported. So they are made here, and the packages
of both daemons import this one before anything else: a test with a real coordinator sees to it.
"""

import os

# gRPC for Python cannot be told which TLS versions to speak. It can be told which cipher suites of TLS 1.2 to offer
# (TLS 1.3 has its own): ours is one that needs an RSA certificate, and all our keys are elliptic-curve keys. So no
# TLS 1.2 handshake can succeed, at either end.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
# Its notes on every closed connection are for daemons, which turn them into log records, not for terminals.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
