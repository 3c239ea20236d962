"""The protocol: who holds what (topology), what is exchanged (messages), one engine (site, home) for any layout."""
