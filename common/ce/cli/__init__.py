"""The command `ce` for analysts: one module per command, and what the commands of the daemons share with it."""
