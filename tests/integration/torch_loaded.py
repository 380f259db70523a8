"""What the fork server has loaded before the first replica is forked. Nothing here may start a thread."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    import torch
    import torch.nn.parallel
    import torch.optim
    import torch.utils.checkpoint
    import torch.utils.data

    import coadapt.torch.job  # noqa: F401

    torch.set_num_threads(1)
