from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from coadapt.report import History
from coadapt.report.chrome_trace import chrome_trace
from tests.unit.report.logs import Log, on, two_jobs


def slices(trace: dict[str, Any], category: str) -> list[tuple[str, int, int, float, float]]:
    """(name, node, lane, start, end) in seconds, in order."""
    events = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == category]
    return sorted((e["name"], e["pid"], e["tid"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events)


def test_chrome_trace_shows_each_stay_on_its_lanes() -> None:
    trace = chrome_trace(History.of(two_jobs().records))
    assert slices(trace, "stay") == [
        ("a", 1, 0, 10, 100),
        ("a", 1, 1, 10, 100),
        ("a", 1, 2, 10, 50),
        ("a", 1, 3, 10, 50),
        *(("b", 2, lane, 50, 80) for lane in range(4)),
    ]


def test_chrome_trace_shows_changes_inside_their_stay() -> None:
    changes = slices(chrome_trace(History.of(two_jobs().records)), "change")
    assert [c[1:] for c in changes if c[1:3] == (1, 0)] == [(1, 0, 10, 20), (1, 0, 50, 60)]
    assert [c[1:] for c in changes if c[1:3] == (1, 3)] == [(1, 3, 10, 20)]


def test_chrome_trace_never_shows_two_jobs_on_one_lane() -> None:
    log = Log(nodes=1, gpus=4)
    for name in "abc":
        log.submit(0, name)
    log.start(0, "a", on(n0=2))
    log.start(0, "b", on(n0=2))
    log.resize(10, "a", on(n0=1))
    log.start(10, "c", on(n0=1))
    log.finish(20, "b")
    log.resize(20, "c", on(n0=3))
    log.finish(30, "a")
    log.finish(30, "c")
    stays = slices(chrome_trace(History.of(log.records)), "stay")
    assert {lane for _, _, lane, _, _ in stays} == {0, 1, 2, 3}
    for lane in range(4):
        own = sorted((start, end) for _, _, at, start, end in stays if at == lane)
        assert all(first[1] <= second[0] for first, second in pairwise(own))
    assert sum(end - start for *_, start, end in stays) == 30 + 10 + 40 + 10 + 30


def test_chrome_trace_is_json_with_names_and_counters() -> None:
    trace = json.loads(json.dumps(chrome_trace(History.of(two_jobs().records))))
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert {"cluster", "n0 (4 x gpu)", "GPU 3"} <= names
    waiting = {e["ts"] / 1e6: e["args"]["value"] for e in trace["traceEvents"] if e["name"] == "jobs waiting"}
    assert (waiting[5], waiting[25], waiting[40], waiting[90]) == (1, 0, 1, 0)


def test_chrome_trace_counts_from_the_first_record() -> None:
    log = Log(begin=1.7e9)
    log.submit(1.7e9 + 1, "a")
    log.start(1.7e9 + 2, "a", on(n0=1))
    log.finish(1.7e9 + 5, "a")
    assert slices(chrome_trace(History.of(log.records)), "stay") == [("a", 1, 0, 2, 5)]
