"""Privacy modes: what stands between a site's engine and whoever adds."""
