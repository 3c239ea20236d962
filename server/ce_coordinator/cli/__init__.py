"""The command `ce-coordinator`: the daemon, and what its operator does."""
