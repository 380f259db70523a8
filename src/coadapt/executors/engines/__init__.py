"""Engines that grant room on nodes: Slurm so far. ``_base.Engine`` is the contract; an adapter is one module here."""
