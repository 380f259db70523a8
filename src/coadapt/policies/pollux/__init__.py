"""Pollux (Qiao et al., OSDI 2021): goodput-driven genetic search."""
