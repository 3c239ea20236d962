"""A mixture model that gives each object to one cluster: classification EM (Celeux, Govaert), as a package for ce."""
