"""The training script as its frames show it: whether it left a loop by itself, and the line that an error is about."""

from __future__ import annotations

import dis
import sys
import traceback
from pathlib import Path
from types import FrameType, TracebackType

import torch

#: What removes the iterator of a loop that ``break`` or ``return`` leaves; an error leaves it in the middle of another operation.
_LEAVING = frozenset(["POP_TOP", "POP_ITER", "END_FOR", "SWAP"])
_OURS = str(Path(__file__).resolve().parents[2])
_TORCH = str(Path(torch.__file__).resolve().parent)


def left_by_script() -> bool:
    """Whether the script left a loop over one of our generators by ``break`` or ``return``; called where GeneratorExit is caught."""
    frame = script_frame(sys._getframe(1))
    if frame is None or frame.f_lasti < 0:
        return False
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in _LEAVING


def calling_line() -> str:
    """``FILE:LINE`` of the script's call into our code."""
    frame = script_frame(sys._getframe(1))
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else ""


def line_of(trace: TracebackType | None) -> str:
    """``FILE, line LINE`` of the innermost line of the script in a traceback; empty if there is none."""
    own = [each for each in traceback.extract_tb(trace) if not _elsewhere(each.filename)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def script_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the script, from ``frame`` outwards."""
    while frame is not None and _elsewhere(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _elsewhere(filename: str) -> bool:
    """Whether a file is ours, PyTorch's or Python's own."""
    return filename.startswith((_OURS, _TORCH, "<frozen"))
