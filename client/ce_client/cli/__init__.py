"""The command `ce-client`: starts the daemon of a site, shows its jobs, decides about them."""
