"""The coordinator: the service that an operator runs. It never needs a label."""
