"""Whether a report can be believed as far as arithmetic goes: what an agent sends is folded by the controller for ever.

A job may lie about itself; it may not make anybody else stumble.
"""

from __future__ import annotations

from coadapt.errors import InputError
from coadapt.model import Configuration, Measurement
from coadapt.wire.agent import Report

#: Measurements and remarks in one report.
MOST_MEASUREMENTS = 64
_MOST_COUNT, _MOST_S, _MOST_WORK, _MOST_NAMES, _MOST_TEXT = 1 << 31, 1e7, 1e15, 64, 100


def check_report(report: Report) -> None:
    """InputError with the first figure that cannot be."""
    if len(report.measurements) > MOST_MEASUREMENTS or len(report.decisions) > MOST_MEASUREMENTS:
        raise InputError(f"a report holds at most {MOST_MEASUREMENTS} measurements; send more often")
    if not 0 <= report.number < 1 << 53 or not 0 <= report.attempt < 1 << 31:
        raise InputError("number and attempt count from 0")
    for measurement in report.measurements:
        _check(measurement)


def _check(m: Measurement) -> None:
    _check_configuration(m.config)
    # 0: no step since the last report, which tells a set-up or a decision all the same
    _within("count", m.count, 0, _MOST_COUNT)
    for name in ("step_s", "sync_s"):
        _within(name, getattr(m, name), 0, _MOST_S)
    for name in ("step_var", "sync_var"):
        _within(name, getattr(m, name), 0, _MOST_S**2)
    if m.sync_s > m.step_s:
        raise InputError(f"sync_s {m.sync_s:g} is a part of step_s {m.step_s:g} and cannot be more")
    if (m.grad_sqr is None) != (m.grad_var is None):
        raise InputError("grad_sqr and grad_var come together")
    # smaller ones are noise of estimators and may be negative; predictors know
    for name in ("grad_sqr", "grad_var"):
        if (value := getattr(m, name)) is not None:
            _within(name, value, -1e30, 1e30)
    for name, most in (("work", _MOST_WORK), ("epoch", 1e9), ("share", 1.0)):
        if (value := getattr(m, name)) is not None:
            _within(name, value, 0, most)
    for what, figures in (("metrics", m.metrics), ("overheads_s", m.overheads_s)):
        if len(figures) > _MOST_NAMES or any(
            len(name) > _MOST_TEXT or not name.isprintable() for name in figures
        ):
            raise InputError(
                f"{what} has more than {_MOST_NAMES} entries, or a name that is not printable or too long"
            )
        for name, value in figures.items():
            _within(name, value, -1e30 if what == "metrics" else 0, 1e30)


def _check_configuration(config: Configuration) -> None:
    _within("nodes", config.nodes, 1, _MOST_COUNT)
    _within("replicas", config.replicas, config.nodes, _MOST_COUNT)
    _within("atomic_batch", config.atomic_batch, 1, _MOST_COUNT)
    _within("accumulation", config.accumulation, 0, _MOST_COUNT)
    _within("servers", config.servers, 0, _MOST_COUNT)
    if len(config.gpu_type) > _MOST_TEXT or not config.gpu_type.isprintable():
        raise InputError("gpu_type is too long or not printable")


def _within(name: str, value: float, least: float, most: float) -> None:
    # what is not a number is within nothing
    if not least <= value <= most:
        # not by :g, which an integer of a thousand digits would break
        raise InputError(f"{name} is {str(value)[:40]}; it must be between {least:g} and {most:g}")
