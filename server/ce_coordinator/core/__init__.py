"""The coordinator's core: events in, instructions out, the clock passed in. No socket, no file, no thread."""
