"""Published planners, for comparison with ours."""
