"""Coadapt: GPUs and batch sizes, chosen together."""

