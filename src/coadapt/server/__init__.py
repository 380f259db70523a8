"""HTTP API: writes the inbox, reads by following the log, and never asks the controller."""
