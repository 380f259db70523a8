"""The simulated executor, its timeline and its models of training."""
