"""Between the coordinator's core and the network: streams, calls, limits, metrics."""
