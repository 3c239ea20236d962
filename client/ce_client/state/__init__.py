"""What a site writes down: jobs, attempts, consents, rosters, the ledger, results."""
