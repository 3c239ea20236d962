"""The coordinator: the service that an operator runs. It never needs a label."""

import ce.transport  # noqa: F401  (sets what gRPC reads when it is first imported)
