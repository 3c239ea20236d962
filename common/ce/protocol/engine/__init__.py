"""The engine: four pure steps of a model at sites and home. No clock, no connection."""
