"""Who holds what: blocks, columns, what a site enrols and what it is sent of the whole."""
