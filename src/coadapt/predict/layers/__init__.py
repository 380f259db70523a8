"""A job before anything has run: time, memory and communication from the layers of its model."""

from coadapt.predict.layers.layer import KINDS, Layer, Measured
from coadapt.predict.layers.learned import LEARNERS, Learner
from coadapt.predict.layers.memory import Memory, memory
from coadapt.predict.layers.network import StepPrediction, predict_step, times
from coadapt.predict.layers.predictor import LayerTimes, predict_layers

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
    "times",
]
