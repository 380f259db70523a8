"""``python -m coadapt.torch.rehearse``: a script stopped, killed and resized at random, beside an undisturbed run of it.

Started by ``coadapt test-resize`` in the user's interpreter; says what it does in JSON lines on standard output. Both runs
journal every committed step (``audit``): which examples, and what the parameters came to. Batches are kept at M0, so that
the two can be compared step by step.
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

from coadapt.torch.audit import Committed
from coadapt.torch.launch import Launcher, LaunchError
from coadapt.wire.trace import Disturbed, Refused, Rehearsed, encode

_KINDS = ("stop", "kill", "grow or shrink in place")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.torch.rehearse")
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
            answer = Refused(reason=f"{error}; {rehearsal.last_words()}")
    _say(answer)


class Rehearsal:
    """Two runs of one command in one directory."""

    def __init__(self, command: Sequence[str], directory: Path, *, patience_s: float) -> None:
        self.command, self.directory, self.patience_s = command, directory, patience_s

    def run(self, replicas: int, disturbances: int, rng: random.Random, tolerance: float) -> Rehearsed:
        """Undisturbed first, to know how many steps there are."""
        quiet = self._launcher("quiet")
        quiet.start(1)
        if any(codes := quiet.wait()):
            raise LaunchError(f"undisturbed, the script ended with {codes[0]}")
        audit = self.directory / "quiet" / "audit"
        reference = committed(audit) if audit.exists() else []
        if not reference:
            raise LaunchError(
                "the script made no step through coadapt.torch: does it loop over job.epochs()?"
            )
        told = self._disturbed(len(reference), replicas, disturbances, rng)
        return compare(reference, self.directory / "loud" / "audit", told, tolerance)

    def last_words(self) -> str:
        """The last line that a replica wrote."""
        logs = sorted(self.directory.glob("*/logs/*.log"), key=lambda path: path.stat().st_mtime)
        for path in reversed(logs):
            lines = path.read_text(errors="replace").strip().splitlines()
            if lines:
                return f"it said: {lines[-1][:200]}"
        return "it said nothing"

    def _launcher(self, name: str) -> Launcher:
        where = self.directory / name
        where.mkdir()
        envs = {
            "COADAPT_AUDIT": str(where / "audit"),
            "COADAPT_CHECKPOINTS": str(where / "checkpoints"),
            "COADAPT_BATCH_RULE": "fixed",
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
                _say(Disturbed(step=at, kind=kind, replicas=count))
            codes = launcher.wait()
        finally:
            launcher.kill()
        if any(code not in (0, 143) for code in codes):
            raise LaunchError(
                f"disturbed, the script ended with {next(c for c in codes if c not in (0, 143))}"
            )
        return done

    def _disturb(self, launcher: Launcher, kind: str, count: int) -> bool:
        """False if the script was done before."""
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
            raise LaunchError(f"told to stop, a replica ended with {codes} instead of 143")
        if all(code == 0 for code in codes):
            return False
        launcher.start(count)
        return True

    def _reached(self, launcher: Launcher, audit: Path, step: int) -> bool:
        """Waits for a step; False if the script ended before."""
        until = time.monotonic() + self.patience_s
        while time.monotonic() < until:
            found = committed(audit) if audit.exists() else []
            if found and found[-1].step >= step:
                return True
            codes = [process.poll() for process in launcher.running.values()]
            if any(code not in (None, 0) for code in codes):
                raise LaunchError(f"a replica ended with {next(c for c in codes if c)}")
            if all(code == 0 for code in codes):
                return False
            time.sleep(0.02)
        raise LaunchError(f"step {step} was not reached in {self.patience_s:.0f} s")


def journal(audit: Path) -> list[Committed]:
    """All lines that are whole, in the order they were written."""
    found = []
    for line in audit.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Committed))
        except msgspec.DecodeError:
            continue  # torn by a kill
    return found


def committed(audit: Path) -> list[Committed]:
    """Steps that count: one that is made again replaces those that a kill threw away."""
    kept: list[Committed] = []
    for step in journal(audit):
        while kept and kept[-1].step >= step.step:
            kept.pop()
        kept.append(step)
    return kept


def compare(reference: Sequence[Committed], audit: Path, disturbances: int, tolerance: float) -> Rehearsed:
    """What differs between the undisturbed run and the other."""
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


def _say(message: Disturbed | Rehearsed | Refused) -> None:
    sys.stdout.buffer.write(encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
