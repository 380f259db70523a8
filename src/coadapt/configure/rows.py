"""One question asked of many curves, answered for all at once: what a policy does at every decision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coadapt.configure._base import Curve, FloatArray, IntArray
from coadapt.configure.curve import Answer, FittedCurve, question_key
from coadapt.configure.many import Question, speeds


def goodput_rows(
    curves: Sequence[Curve], nodes: IntArray, replicas: IntArray, gpu_type: str = "gpu"
) -> FloatArray:
    """goodput[curve, place]; a curve keeps its answer and is not asked again while nothing changes."""
    key = question_key(gpu_type, nodes, replicas)
    new: dict[int, tuple[FittedCurve, Question]] = {}
    found = np.zeros((len(curves), len(nodes)))
    for row, curve in enumerate(curves):
        known = curve.answers.get(key) if isinstance(curve, FittedCurve) else None
        if known is not None:
            found[row] = known.goodput
            continue
        model = curve.batchable(gpu_type) if isinstance(curve, FittedCurve) else None
        if model is None or not isinstance(curve, FittedCurve):
            found[row] = curve.goodput(nodes, replicas, gpu_type)
        else:
            new[row] = curve, Question(model, curve.limits(gpu_type), curve.fixed)
    runs = np.flatnonzero((nodes >= 1) & (nodes <= replicas))
    if not new or not runs.size:
        return found
    places = tuple(nodes[runs].tolist()), tuple(replicas[runs].tolist())
    at = {
        (n, k): (place, column)
        for column, (n, k, place) in enumerate(zip(*places, runs.tolist(), strict=True))
    }
    answers = speeds([asked for _, asked in new.values()], *places)
    for (row, (curve, _)), answer in zip(new.items(), answers, strict=True):
        found[row, runs] = answer.goodput
        mine = found[row].copy()
        mine.flags.writeable = False
        curve.answers[key] = Answer(mine, answer.examples_per_s, answer.batch, at)
    return found
