"""Between the coordinator's brain and the network: streams, calls, limits, metrics."""
