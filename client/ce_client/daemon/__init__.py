"""The daemon of a site: its connection, its jobs, its files."""
