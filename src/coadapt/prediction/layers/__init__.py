"""A job before anything has run: time, memory and communication from the layers of its model."""

from coadapt.prediction.layers.layer import KINDS, Layer, Measured
from coadapt.prediction.layers.layer_time import LayerTimes, predict_layers
from coadapt.prediction.layers.learned import LEARNERS, Learner
from coadapt.prediction.layers.model_step import Memory, StepPrediction, memory, predict_step

__all__ = [
    "KINDS",
    "LEARNERS",
    "Layer",
    "LayerTimes",
    "Learner",
    "Measured",
    "Memory",
    "StepPrediction",
    "memory",
    "predict_layers",
    "predict_step",
]
