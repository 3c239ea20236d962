"""The analyst's command, `ce`."""
