"""Scripts of the gallery as real processes, forked from one that has loaded PyTorch: undisturbed, disturbed, and as they came.

A gallery script is one file with both versions: a line that ends in ``#+`` is ours, a line ``#- code`` is the author's.
"""

from __future__ import annotations

import difflib
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from coadapt.torch.elastic.notices import Notice
from coadapt.torch.launch import Launcher, LaunchError
from coadapt.torch.tools.rehearse import committed, compare
from coadapt.wire.agent import Variable
from coadapt.wire.tool_messages import Rehearsed

GALLERY = Path(__file__).parent / "gallery"
_PATIENCE_S = 180.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["benchmarks.gallery_loaded"])


def versions(script: Path) -> tuple[list[str], list[str]]:
    """The author's lines and ours."""
    before, after = [], []
    for line in script.read_text().splitlines():
        text = line.lstrip()
        if text.startswith("#- "):
            before.append(line.replace("#- ", "", 1))
        elif line.endswith("#+"):
            after.append(line.removesuffix("#+").rstrip())
        else:
            before.append(line)
            after.append(line)
    return before, after


def refusals(output: str) -> list[str]:
    """The lines with which replicas were refused; PyTorch puts the rank before them."""
    ours = [re.sub(r"^(\[rank\d+\]: )*", "", line) for line in output.splitlines()]
    return [line for line in ours if line.startswith("coadapt: ") and " ends: " not in line]


def changed_lines(script: Path) -> int:
    """Lines that differ, as ``diff`` counts them: removed and added."""
    return sum(line[:2] in ("- ", "+ ") for line in difflib.ndiff(*versions(script)))


class _Forked:
    """A forked process with the interface of ``subprocess.Popen`` that ``Launcher`` uses."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("replica", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkLauncher(Launcher):
    """Replicas forked instead of started: two seconds of importing PyTorch are not paid each time."""

    def request_checkpoint(self) -> None:
        """Have the replicas save a checkpoint at the next step that they agree on."""
        self._rendezvous.notify(Notice(kind="checkpoint", generation=self.generation + 1))

    def _spawn(self, envs: dict[str, str], out: Path | None) -> Any:
        process = _context.Process(target=_main, args=(self.command[-1], envs, str(out)), daemon=True)
        process.start()
        return _Forked(process)


def _main(script: str, envs: dict[str, str], out: str) -> None:
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.clear()
    os.environ.update(envs)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    if pause := float(envs.get("GALLERY_PAUSE_S", "0")):
        _pause_after_steps(pause)
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception:
        # a forked process would print a traceback of its own
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)


def _pause_after_steps(pause_s: float) -> None:
    """Every step takes longer, so that a disturbance finds the script before its end."""
    from coadapt.torch.training.training_loop import StepJournal

    original = StepJournal.write

    def write(journal: StepJournal, training: Any) -> None:
        original(journal, training)
        time.sleep(pause_s)

    StepJournal.write = write  # type: ignore[method-assign,assignment]


class GalleryRun:
    """Runs of one script in ``directory``."""

    def __init__(self, script: Path, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.script = directory / script.name
        self.script.write_text("\n".join(versions(script)[1]) + "\n")

    def launcher(self, name: str, **envs: str) -> ForkLauncher:
        """A launcher whose files are in a directory ``name``."""
        where = self.directory / name
        where.mkdir()
        known = {
            Variable.AUDIT: str(where / "audit"),
            Variable.CHECKPOINTS: str(where / "checkpoints"),
            Variable.BATCH_RULE: "fixed",
            "GALLERY_OUT": str(where),
        }
        return ForkLauncher(
            [str(self.script)], envs={**known, **envs}, logs=where / "logs", patience_s=_PATIENCE_S
        )

    def to_its_end(self, name: str, replicas: int, **envs: str) -> tuple[list[int], str]:
        """Exit codes and output of an undisturbed run."""
        launcher = self.launcher(name, **envs)
        launcher.start(replicas)
        try:
            codes = launcher.wait()
        finally:
            launcher.kill()
        return codes, self.output(name)

    def output(self, name: str) -> str:
        """The output of all replicas, one after the other."""
        logs = sorted((self.directory / name / "logs").glob("*.log"))
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def exact(self, tolerance: float) -> Rehearsed:
        """1 -> 3 -> 2 replicas and two kills, beside one undisturbed process."""
        codes, said = self.to_its_end("quiet", 1)
        if any(codes):
            raise LaunchError(f"the undisturbed run exited with {codes}: {said[-2000:]}")
        reference = committed(self.directory / "quiet" / "audit")
        launcher = self.launcher("loud", GALLERY_PAUSE_S="0.02")
        audit, steps = self.directory / "loud" / "audit", len(reference)
        try:
            launcher.start(1)
            self.reach(launcher, audit, steps // 4)
            self._checkpoint(launcher)
            launcher.kill()
            launcher.start(3)
            self.reach(launcher, audit, steps // 2)
            launcher.resize(2)
            self.reach(launcher, audit, 3 * steps // 4)
            self._checkpoint(launcher)
            launcher.kill()
            launcher.start(2)
            codes = launcher.wait()
        finally:
            launcher.kill()
        if any(codes):
            raise LaunchError(f"the disturbed run exited with {codes}: {self.output('loud')[-2000:]}")
        return compare(reference, audit, 4, tolerance)

    def _checkpoint(self, launcher: ForkLauncher) -> None:
        """Have the replicas save a checkpoint in the middle of an epoch."""
        kept = self.directory / "loud" / "checkpoints"
        before = max((path.name for path in kept.glob("*.ckpt")), default="")
        launcher.request_checkpoint()
        until = time.monotonic() + _PATIENCE_S
        while max((path.name for path in kept.glob("*.ckpt")), default="") <= before:
            if time.monotonic() > until or any(p.poll() is not None for p in launcher.running.values()):
                raise LaunchError(f"no checkpoint was written: {self.output('loud')[-2000:]}")
            time.sleep(0.01)

    def reach(self, launcher: Launcher, audit: Path, step: int, name: str = "loud") -> None:
        """Wait until the journal has ``step``."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            found = committed(audit) if audit.exists() else []
            if found and found[-1].step >= step:
                return
            codes = [process.poll() for process in launcher.running.values()]
            if any(code is not None for code in codes):
                raise LaunchError(
                    f"a replica ended with {codes} before step {step}: {self.output(name)[-2000:]}"
                )
            time.sleep(0.01)
        raise LaunchError(f"step {step} was not reached: {self.output(name)[-2000:]}")
