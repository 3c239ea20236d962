"""The protocol: who holds what (topology), what is exchanged (messages), and the one engine (site, home) for any layout."""
