"""Commands, and the composition root: names and options become objects here and nowhere else."""
