"""What several tests use: problems, deployments, played coordinators and sites, forged frames."""
