"""The daemon that an organisation runs next to its labels. It dials out, and obeys its own policy first."""
