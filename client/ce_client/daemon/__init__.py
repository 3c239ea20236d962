"""The daemon of a site: its connection, its workers, its jobs, its files."""
