"""Stop, checkpoint, resize and resume of a training script."""
