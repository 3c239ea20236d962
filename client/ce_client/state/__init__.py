"""Files of a site's state directory: jobs, attempts, consents, rosters, previews and the ledger; and its results."""
