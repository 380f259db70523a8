"""Commands that run and administer a live cluster."""
