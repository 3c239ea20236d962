"""The daemon that an organisation runs beside its labels. It connects to a coordinator, and checks its policy first."""

import ce.transport  # noqa: F401  (sets what gRPC reads when it is first imported)
