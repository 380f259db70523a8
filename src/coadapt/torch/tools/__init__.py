"""Tools run in the user's interpreter by ``python -m``: they answer with JSON lines."""
