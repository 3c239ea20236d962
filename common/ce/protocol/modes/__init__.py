"""Privacy modes: what stands between a site's engine and the party that adds."""
