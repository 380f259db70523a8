"""The dashboard: HTML pages rendered by the server and refreshed by one small script."""
