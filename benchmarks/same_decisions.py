"""``python -m benchmarks.same_decisions HOME``: a live run against the same code without a world around it.

1. Its facts, fed to ``handle``, give the recorded decisions and actions byte for byte.
2. A simulation of its arrivals, with what it measured as ground truth, predicts its completion times.

HOME is of a run of the demo on paced virtual GPUs (``python examples/demo/run.py --only coadapt``); without one, it is run here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from benchmarks.chaos_check import replay, stored
from benchmarks.measure import Row, show
from benchmarks.same_decisions_truth import RunTruth, Seconds, measured_run, resize_kind
from benchmarks.smoke import either, few_of
from coadapt.model import (
    ControllerStarted,
    JobFinished,
    JobSpec,
    JobSubmitted,
    Measurement,
    NodeJoined,
    Placement,
    Record,
    parse_cluster,
)
from coadapt.policies.coadapt.policy import CoadaptPolicy
from coadapt.runtime import Loop
from coadapt.runtime.controller import scheduler_of
from coadapt.simulation.engine.interference import Slowdown
from coadapt.simulation.engine.simulated_executor import OUTSIDE, SimulatedExecutor, Timeline
from coadapt.simulation.engine.training_model import ProfiledTraining, TrainingOptions, WithoutRounds
from coadapt.simulation.lookahead import Unwritten
from coadapt.simulation.run import simulate
from coadapt.simulation.truth.profiles import shipped_profiles, spec_for
from coadapt.store import MemoryLog, open_store
from coadapt.store.home import Home
from coadapt.wire.serve_options import ServeOptions

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo" / "run.py"
#: Steps of the loop within which eight jobs end.
_STEPS = 100_000
_KINDS = ("start", "grow", "shrink")


class Prepared(WithoutRounds):
    """Training that begins only after its imports and ends only after its farewell, as processes do; see ``Training``."""

    def __init__(self, inner: ProfiledTraining, end_s: float) -> None:
        self._inner, self._setup_s, self._end_s = inner, 0.0, end_s
        #: A set-up that the next report tells of, as agents do.
        self._untold_s = 0.0
        #: When the set-up is over; None: it is.
        self._until: float | None = None
        self.finished, self.next_at, self.measured_link = False, float("inf"), inner.measured_link

    def place(self, placement: Placement) -> None:
        """The agent learns where it is."""
        self._inner.place(placement)

    def begin(self, seconds: float, *, told: bool) -> None:
        """What the next ``resume`` waits for, and whether it is ``told``."""
        self._setup_s = seconds
        self._untold_s = seconds if told else 0.0

    def resume(self, at: float) -> None:
        """Nothing is trained before the set-up is over."""
        self._until = self.next_at = at + self._setup_s

    def pause(self, at: float, *, lost: bool = False) -> None:
        """What was being set up is lost, what was trained is not."""
        if self._until is None:
            self._inner.pause(at, lost=lost)
        self._until, self.next_at = None, float("inf")

    def advance(self, at: float) -> Measurement | None:
        """The set-up ends, training goes on, or the farewell is over."""
        if self._inner.finished:
            self.finished, self.next_at = True, float("inf")
            return None
        if self._until is not None:
            self._until = None
            self._inner.resume(at)
            self.next_at = self._inner.next_at
            return None
        report = self._inner.advance(at)
        if report is not None and self._untold_s:
            report = msgspec.structs.replace(report, overheads_s={"setup": self._untold_s})
            self._untold_s = 0.0
        self.next_at = at + self._end_s if self._inner.finished else self._inner.next_at
        return report

    def slow(self, at: float, slowdown: Slowdown) -> None:
        """Virtual GPUs do not slow each other."""


def simulated(
    options: ServeOptions, records: Sequence[Record], truths: dict[str, RunTruth], seconds: Seconds
) -> dict[str, float]:
    """JCT by job, of the same arrivals under the same policy."""
    scheduler, began = scheduler_of(options), records[0].at
    timeline, trainings = Timeline(began), dict[str, Prepared]()
    setup_s = {kind: seconds.typical(seconds.setup[kind]) for kind in _KINDS}
    launch_s = {kind: seconds.typical(seconds.launch[kind]) for kind in _KINDS}
    training = TrainingOptions(report_s=max(seconds.typical(seconds.report), 1.0))

    def train(job: str, spec: JobSpec) -> Prepared:
        inner = ProfiledTraining(spec, truths[spec.profile], training)
        trainings[job] = Prepared(inner, seconds.typical(seconds.end))
        return trainings[job]

    def change_cost(spec: JobSpec, before: Placement, after: Placement) -> float:
        kind = resize_kind(before, after) if before else "start"
        for job, made in trainings.items():
            if scheduler.state.jobs[job].spec is spec:
                made.begin(setup_s[kind], told=kind == "start")
        return 0.0 if before else launch_s[kind]

    def ready_s(spec: JobSpec, before: Placement, after: Placement) -> float:
        """Resizes are made in place: training goes on until all are there."""
        return launch_s[resize_kind(before, after)]

    executor = SimulatedExecutor(
        timeline=timeline,
        spec_of=lambda job: scheduler.state.jobs[job].spec,
        train=train,
        change_cost=change_cost,
        stop_s=seconds.typical(seconds.stop),
        ready_s=ready_s,
    )
    for record in records:
        if isinstance(record.event, JobSubmitted | NodeJoined):
            timeline.at(record.at, record.event, OUTSIDE)
    loop = Loop(scheduler, executor, timeline, Unwritten())
    loop.take(began, ControllerStarted(version="simulation"))
    state = scheduler.state
    arrivals = sum(isinstance(record.event, JobSubmitted) for record in records)
    for _ in range(_STEPS):
        if state.ended == arrivals or not loop.step():
            break
    return {j.id: j.finished_at - j.submitted_at for j in state.jobs.values() if j.finished_at is not None}


def lived(records: Sequence[Record]) -> dict[str, float]:
    """JCT by job, of the run; of those that succeeded."""
    came = {r.event.job: r.at for r in records if isinstance(r.event, JobSubmitted)}
    return {
        r.event.job: r.at - came[r.event.job]
        for r in records
        if isinstance(r.event, JobFinished) and r.event.outcome == "succeeded"
    }


def compare(home: Home) -> list[Row]:
    """Both promises, for one home."""
    options = home.read_options()
    wrong = replay(options, stored(home))
    print("\n".join(wrong))
    with closing(open_store(home.store(options)).log()) as log:
        records = list(log.read())
    truths, seconds = measured_run(records)
    true, said = lived(records), simulated(options, records, truths, seconds)
    arrived = {record.event.job for record in records if isinstance(record.event, JobSubmitted)}
    # a job that came to no good end in either world is no JCT to compare, and must not go unsaid
    missing = sorted(arrived - (true.keys() & said.keys()))
    print("".join(f"  {job}: not compared, for it did not end well in both\n" for job in missing), end="")
    true = {job: jct for job, jct in true.items() if job in said}
    errors = {job: said[job] / jct - 1 for job, jct in true.items()}
    for job, jct in true.items():
        print(f"  {job:<18} live {jct:7.1f} s   simulated {said[job]:7.1f} s   {errors[job]:+.1%}")
    besides = {
        name: round(seconds.typical(values), 2)
        for name, values in (
            ("start", seconds.setup["start"]),
            ("until grown", seconds.launch["grow"]),
            ("until shrunk", seconds.launch["shrink"]),
            ("end", seconds.end),
        )
    }
    print(f"  seconds besides steps, medians: {besides}")
    sizes = [abs(error) for error in errors.values()]
    mean = abs(sum(said[job] for job in true) / sum(true.values()) - 1)
    return [
        Row("recorded decisions that facts do not give again", len(wrong), 0, note=f"{len(records)} records"),
        Row("jobs that did not end well, live or simulated", len(missing), 0, note=f"of {len(arrived)}"),
        Row("JCT, simulated against live: mean error", 100 * sum(sizes) / len(sizes), 10, unit="%"),
        Row("average JCT, simulated against live", 100 * mean, 10, unit="%"),
        Row("largest error of one job", 100 * max(sizes), 25, unit="%"),
    ]


def simulated_home(path: Path) -> Path:
    """Stands for the demo's home in the smoke form: the log of two simulated jobs, for the demo takes minutes."""
    home, truths = Home(path), few_of(shipped_profiles())
    home.make()
    options = ServeOptions(virtual="1x4:t4", policy="coadapt")
    home.write_options(options)
    submissions = [
        (
            10.0 * number,
            f"job-{number}",
            spec_for(f"job-{number}", truth, task, replicas=1, batch=truth.limits("t4").initial),
        )
        for number, (task, truth) in enumerate([*truths.items()] * 2)
    ]
    memory = MemoryLog()
    simulate(submissions, parse_cluster(options.virtual), CoadaptPolicy(), memory, truths=truths)
    with closing(open_store(home.store(options)).log()) as log:
        log.append([Record(seq=0, at=0.0, event=ControllerStarted(version="0", policy="CoadaptPolicy"))])
        log.append([msgspec.structs.replace(record, seq=record.seq + 1) for record in memory.read()])
    return path


def main() -> int:
    """1 where a must falls short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", nargs="?", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coadapt-same-") as name:
        home = given.home
        if either(True, False):
            home = simulated_home(Path(name) / "home")
        elif home is None:
            out = Path(name) / "demo"
            subprocess.run([sys.executable, str(DEMO), "--only", "coadapt", "-o", str(out)], check=True)
            home = out / "coadapt"
        return 0 if show("The same decisions", compare(Home(home))) else 1


if __name__ == "__main__":
    sys.exit(main())
