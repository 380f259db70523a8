"""Commands about jobs of a live cluster."""
