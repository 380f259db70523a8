"""The part that lives in the training process: the only importer of PyTorch. Nothing imports it.

``python -m coadapt.torch.trace | profile_layers | profile_run | profile_network`` are started by ``cli`` in the
user's interpreter and answer with JSON lines (``coadapt.wire.trace``) on standard output.
"""
