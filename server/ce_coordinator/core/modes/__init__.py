"""What differs between jobs over totals and sealed jobs at the coordinator."""
