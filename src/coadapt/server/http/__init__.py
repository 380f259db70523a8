"""The HTTP layer: routing, decoding, problems, limits, OpenAPI."""
