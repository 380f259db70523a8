"""Our own policy: GPUs by predicted goodput and remaining work, decided exactly."""
