"""How the sites of a job come to share keys."""
