"""What the fork server of the gallery has loaded before the first replica is forked. Nothing here may start a thread."""

from __future__ import annotations

import torch
import torch.nn.parallel
import torch.optim.swa_utils
import torch.utils.data.distributed

import coadapt.torch.job
import coadapt.torch.launch
import coadapt.torch.tools.rehearse  # noqa: F401

torch.set_num_threads(1)
