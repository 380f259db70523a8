"""The formats of training logs that ``coadapt watch``, ``plan --profile``, the node agent and ``history import`` read."""
