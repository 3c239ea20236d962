"""Keys between sites, and what hides names from the coordinator. Knows bytes only: no model, no label table."""
