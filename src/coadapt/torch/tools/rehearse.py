"""``python -m coadapt.torch.tools.rehearse``: stop, kill and resize a script at random, and compare with an undisturbed run.

Started by ``coadapt test-resize`` in the user's interpreter; its messages are JSON lines on standard output. Both runs write a journal
of committed steps (``StepJournal``): their examples and the sums of the parameters. The batch size stays M0, so that the two runs can
be compared step by step.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coadapt.torch.launch import Launcher, LaunchError
from coadapt.torch.training.training_loop import CommittedStep
from coadapt.wire.agent import Variable
from coadapt.wire.tool_messages import Disturbed, Refused, Rehearsed, encode

_KINDS = ("stop", "kill", "grow or shrink in place")


def main() -> None:
    """Run the rehearsal in the arguments and print its messages as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.torch.tools.rehearse")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--disturbances", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--patience", type=float, default=600.0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coadapt-rehearsal-") as directory:
        rehearsal = Rehearsal(given.command, Path(directory), patience_s=given.patience)
        try:
            answer: Rehearsed | Refused = rehearsal.run(
                given.replicas, given.disturbances, random.Random(given.seed), given.tolerance
            )
        except LaunchError as error:
            answer = Refused(reason=f"{error}; {rehearsal.last_output()}")
    _write(answer)


class Rehearsal:
    """Two runs of one command in one directory."""

    def __init__(self, command: Sequence[str], directory: Path, *, patience_s: float) -> None:
        self.command, self.directory, self.patience_s = command, directory, patience_s

    def run(self, replicas: int, disturbances: int, rng: random.Random, tolerance: float) -> Rehearsed:
        """Run the script undisturbed, then disturbed, and compare.

        Args:
            replicas: The largest number of replicas.
            disturbances: How many stops, kills and resizes.
            rng: Chooses them.
            tolerance: The largest relative difference of parameters.
        """
        quiet = self._launcher("quiet")
        quiet.start(1)
        if any(codes := quiet.wait()):
            raise LaunchError(f"the undisturbed run exited with code {codes[0]}")
        audit = self.directory / "quiet" / "audit"
        reference = committed(audit) if audit.exists() else []
        if not reference:
            raise LaunchError(
                "the script made no step through coadapt.torch: does it loop over job.epochs()?"
            )
        done = self._disturbed(len(reference), replicas, disturbances, rng)
        return compare(reference, self.directory / "loud" / "audit", done, tolerance)

    def last_output(self) -> str:
        """The last line of output of a replica."""
        logs = sorted(self.directory.glob("*/logs/*.log"), key=lambda path: path.stat().st_mtime)
        for path in reversed(logs):
            lines = path.read_text(errors="replace").strip().splitlines()
            if lines:
                return f"its last output: {lines[-1][:200]}"
        return "it had no output"

    def _launcher(self, name: str) -> Launcher:
        where = self.directory / name
        where.mkdir()
        envs = {
            Variable.AUDIT: str(where / "audit"),
            Variable.CHECKPOINTS: str(where / "checkpoints"),
            Variable.BATCH_RULE: "fixed",
        }
        return Launcher(self.command, envs=envs, logs=where / "logs", patience_s=self.patience_s)

    def _disturbed(self, steps: int, replicas: int, disturbances: int, rng: random.Random) -> int:
        launcher, audit, done = self._launcher("loud"), self.directory / "loud" / "audit", 0
        count = 1
        launcher.start(count)
        try:
            for at in sorted(rng.sample(range(1, max(steps, 2)), min(disturbances, steps - 1))):
                if not self._reached(launcher, audit, at):
                    break
                count, kind = rng.randint(1, replicas), rng.choice(_KINDS)
                if not self._disturb(launcher, kind, count):
                    break
                done += 1
                _write(Disturbed(step=at, kind=kind, replicas=count))
            codes = launcher.wait()
        finally:
            launcher.kill()
        if any(code not in (0, 143) for code in codes):
            raise LaunchError(
                f"the disturbed run exited with code {next(c for c in codes if c not in (0, 143))}"
            )
        return done

    def _disturb(self, launcher: Launcher, kind: str, count: int) -> bool:
        """Disturb the run; False if the script ended before."""
        if kind == "grow or shrink in place":
            try:
                launcher.resize(count)
            except LaunchError:
                if any(process.poll() not in (None, 0) for process in launcher.running.values()):
                    raise
                launcher.kill()
                return False
            return True
        codes = launcher.stop() if kind == "stop" else launcher.kill()
        if kind == "stop" and any(code not in (0, 143) for code in codes):
            raise LaunchError(f"after SIGTERM a replica exited with {codes} instead of 143")
        if all(code == 0 for code in codes):
            return False
        launcher.start(count)
        return True

    def _reached(self, launcher: Launcher, audit: Path, step: int) -> bool:
        """Wait for a step; False if the script ended before."""
        until = time.monotonic() + self.patience_s
        while time.monotonic() < until:
            found = committed(audit) if audit.exists() else []
            if found and found[-1].step >= step:
                return True
            codes = [process.poll() for process in launcher.running.values()]
            if any(code not in (None, 0) for code in codes):
                raise LaunchError(f"a replica exited with code {next(c for c in codes if c)}")
            if all(code == 0 for code in codes):
                return False
            time.sleep(0.02)
        raise LaunchError(f"step {step} was not reached in {self.patience_s:.0f} s")


def journal(audit: Path) -> list[CommittedStep]:
    """All complete lines, in the order in which they were written."""
    found = []
    for line in audit.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(line, type=CommittedStep))
        except msgspec.DecodeError:
            continue  # torn by a kill
    return found


def committed(audit: Path) -> list[CommittedStep]:
    """The steps that count: a repeated one replaces those that a kill discarded."""
    counted: list[CommittedStep] = []
    for step in journal(audit):
        while counted and counted[-1].step >= step.step:
            counted.pop()
        counted.append(step)
    return counted


def compare(
    reference: Sequence[CommittedStep], audit: Path, disturbances: int, tolerance: float
) -> Rehearsed:
    """Compare the disturbed run with the undisturbed one.

    Args:
        reference: Steps of the undisturbed run.
        audit: Journal of the disturbed run.
        disturbances: How many there were.
        tolerance: The largest relative difference of parameters.
    """
    other = committed(audit)
    places = [[(s.step, s.passes, s.position) for s in run] for run in (reference, other)]
    same_examples = places[0] == places[1]
    apart = [_apart(a.parameters, b.parameters) for a, b in zip(reference, other, strict=False)]
    final = _apart(reference[-1].parameters, other[-1].parameters if other else (0.0, 0.0))
    return Rehearsed(
        steps=len(reference),
        disturbances=disturbances,
        repeated=len(journal(audit)) - len(other),
        same_examples=same_examples,
        largest_jump=max(apart, default=0.0),
        final_difference=final,
        tolerance=tolerance,
        first_difference=apart[0] if apart else 0.0,
    )


def _apart(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(p - q) / max(abs(p), 1.0) for p, q in zip(a, b, strict=True))


def _write(message: Disturbed | Rehearsed | Refused) -> None:
    sys.stdout.buffer.write(encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
