"""The agent of a machine that joined a controller elsewhere, and its guard."""
