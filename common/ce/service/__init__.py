"""What both daemons need to run: settings, logs, metrics, checkpoints, files that are written whole."""
