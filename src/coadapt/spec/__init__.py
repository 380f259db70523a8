"""Readers of everything that users write: job files, targets, deadlines, GPUs, ranges, money, prices. One reader for each.

Target -> ``target``; deadline, moment of the past -> ``deadline``; GPUs, ranges -> ``gpus``; budget, price file -> ``prices``;
job file -> ``job_file``, its rules -> ``job_rules``, its reference page and JSON Schema -> ``job_reference``; the code of a
job -> ``code_archive``; a model's input -> ``input_shape``; YAML -> ``yaml_file``. Durations and sizes: ``coadapt.units``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coadapt._lazy import attach

if TYPE_CHECKING:
    from coadapt.spec.code_archive import freeze
    from coadapt.spec.deadline import parse_deadline, parse_past
    from coadapt.spec.job_reference import example_file, job_schema, schema_file
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "code_archive": ("freeze",),
            "deadline": ("parse_deadline", "parse_past"),
            "job_reference": ("example_file", "job_schema", "schema_file"),
        },
    )

__all__ = ["example_file", "freeze", "job_schema", "parse_deadline", "parse_past", "schema_file"]
