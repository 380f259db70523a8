"""Engines that grant room on nodes: Slurm, Ray, Kubernetes. ``_base.Engine`` is the contract; an adapter is one module here."""
