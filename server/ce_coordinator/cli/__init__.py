"""The command `ce-coordinator`: the daemon, and its operator's commands."""
