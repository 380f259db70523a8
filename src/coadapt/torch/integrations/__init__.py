"""Callbacks for training loops that are not the script's own: they report, and on SIGTERM they save and exit.

``from coadapt.torch.integrations.huggingface import CoadaptCallback`` or ``...lightning``. The batch size and the learning rate
stay the framework's: its hooks do not reach that far (docs/torch.md).
"""
