"""Ground truth of simulated jobs: profiles, measured tables, oracles."""
