"""ce: consensus over private labels. See README.md."""

__version__ = "0.1.0"
