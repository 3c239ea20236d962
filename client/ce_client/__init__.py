"""The daemon that an organisation runs next to its labels. It dials out, and obeys its own policy first."""

import ce.transport  # noqa: F401  (sets what gRPC reads when it is first imported)
