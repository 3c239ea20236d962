"""The command `ce-client`: the daemon of a site, and what its people do."""
