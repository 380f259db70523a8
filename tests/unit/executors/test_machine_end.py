"""When a machine that joins is taken away, as its user or its engine says."""

from __future__ import annotations

from datetime import datetime

import pytest

from coadapt.errors import InputError
from coadapt.executors.agent.process_guard import end_of

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("until", "environment", "end"),
    [
        ("", {}, None),
        ("8h", {}, NOW + 8 * 3600),
        ("8h", {"COADAPT_REMAINING": "1:00"}, NOW + 8 * 3600),
        (datetime.fromtimestamp(NOW + 600).isoformat(), {}, NOW + 600),
        ("", {"COADAPT_REMAINING": "1-00:00:00"}, NOW + 86400),
        ("", {"COADAPT_REMAINING": "UNLIMITED"}, None),
        ("", {"SLURM_JOB_END_TIME": str(int(NOW) + 60)}, NOW + 60),
        ("", {"SLURM_JOB_END_TIME": "soon"}, None),
        # of a job that a shell was started in long ago
        ("", {"SLURM_JOB_END_TIME": str(int(NOW) - 60)}, None),
    ],
)
def test_end_is_that_of_the_user_then_that_of_the_engine(
    until: str, environment: dict[str, str], end: float | None
) -> None:
    assert end_of(until, environment, NOW) == end


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("tomorrow", "--until 'tomorrow' is neither a time from now"),
        ("2020-01-01T00:00", "--until 2020-01-01T00:00 is not in the future"),
    ],
)
def test_moment_that_is_none_or_past_is_refused(until: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        end_of(until, {}, NOW)
