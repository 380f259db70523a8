"""The files a journey of a user runs through: those of coadapt in which at least one function ran (for ``house``).

A hook (``_HOOK``, a ``sitecustomize`` on ``PYTHONPATH``) is loaded by every Python process of the journey, however it
was started, and appends each file to a common record the first time that a function of it runs, so that a process
that is killed has been recorded as well. Code of modules and of class bodies is no function; a comprehension is one,
as Python 3.11 has it and as the reviewer counted (from 3.12 on comprehensions are part of what they stand in: some two
files fewer).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_HOOK = """
import os, sys, threading

RECORD, PREFIX = {record!r}, {prefix!r}
seen, files = set(), set()


def write(pid, kind, text):
    handle = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{{pid}}\\t{{kind}}\\t{{text}}\\n".encode())
    os.close(handle)


def called(frame, event, argument):
    code = frame.f_code
    if code in seen:
        return
    seen.add(code)
    # CO_OPTIMIZED: a function, not the body of a module or class
    if not code.co_flags & 1:
        return
    name, pid = code.co_filename, os.getpid()
    if name.startswith(PREFIX) and (pid, name) not in files:
        if not any(known == pid for known, _ in files):
            write(pid, "argv", "\\x1f".join(sys.orig_argv[1:])[:2000].replace("\\n", " "))
        files.add((pid, name))
        write(pid, "file", name[len(PREFIX):])


threading.settrace(called)
sys.settrace(called)
"""

#: A job that takes long enough to report, and says at the end that it is done.
_TRAIN = """
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.torch as coadapt

torch.manual_seed(0)
x = torch.randn(2048, 8)
dataset = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
job = coadapt.init()
model, optimizer, schedule = job.prepare(model, optimizer, schedule)
loader = job.loader(dataset, batch_size=32, max_batch_size=256)
for epoch in job.epochs(8):
    right = 0
    for features, labels in loader:
        optimizer.zero_grad()
        found = model(features)
        loss = nn.functional.cross_entropy(found, labels)
        loss.backward()
        optimizer.step()
        right += int((found.argmax(1) == labels).sum())
        time.sleep(0.02)
    schedule.step()
    job.report(val_acc=right / len(dataset), loss=loss)
if job.rank == 0:
    Path(sys.argv[1]).touch()
"""

#: Processes beside a job's own way: who holds the others, and who simulates what the preview says.
_APART = ("supervisor", "look-ahead")
_ROLES = (
    (r"\bserve\b", "supervisor"),
    (r"forward|look_?ahead|outlook|preview|forecast", "look-ahead"),
    (r"keeper", "keeper"),
    (r"controller", "controller"),
    (r"coadapt\.server|\bapi\b", "API"),
    (r"train\.py|coadapt\.torch", "agent"),
    (r"\bsubmit\b", "client"),
)
_LONGEST_S = 300.0
_QUIET_S = 5.0


@dataclass(frozen=True, slots=True)
class Journey:
    """One thing a user does, with what it took at 6d85f2d and may take."""

    what: str
    now: int
    must: int
    run: Callable[[Path, Path, Path], str]


@dataclass(frozen=True, slots=True)
class Traced:
    """Files of a journey, relative to the package: of all processes, and by what kind of process ran them."""

    files: frozenset[str]
    by_process: dict[str, frozenset[str]]


def trace(root: Path, journey: Journey) -> Traced:
    """Runs ``journey`` with the sources of the checkout ``root`` and says which files ran."""
    with tempfile.TemporaryDirectory(prefix="coadapt-house-") as folder:
        record = Path(folder, "record")
        record.touch()
        hook = _HOOK.format(record=str(record), prefix=f"{root / 'src' / 'coadapt'}{os.sep}")
        Path(folder, "hook").mkdir()
        Path(folder, "hook", "sitecustomize.py").write_text(hook, encoding="utf-8")
        return summary(journey.run(root, Path(folder), record))


def summary(record: str) -> Traced:
    """What the text of a ``record`` says."""
    roles: dict[str, str] = {}
    found: dict[str, set[str]] = defaultdict(set)
    for line in record.splitlines():
        pid, kind, text = line.split("\t", 2)
        if kind == "argv":
            roles[pid] = role_of(text.split("\x1f"))
        else:
            found[roles[pid]].add(text)
    counted = (files for role, files in found.items() if role not in _APART)
    return Traced(
        frozenset[str]().union(*counted), {role: frozenset(files) for role, files in sorted(found.items())}
    )


def role_of(arguments: Sequence[str]) -> str:
    """What kind of process was started with ``arguments``; the module's or script's name if that is unknown."""
    # behind -c stands our own program, then the command; else the module or script, then paths that may hold any word
    rest = [each for each in arguments if not each.startswith("-")]
    text = rest[1] if arguments[:1] == ["-c"] and len(rest) > 1 else Path((rest or [""])[0]).name
    return next((role for pattern, role in _ROLES if re.search(pattern, text)), text)


def _simulation(root: Path, folder: Path, record: Path) -> str:
    _run(root, folder, ["simulate", "examples/small.csv", "--cluster", "2x4", "--policy", "coadapt"])
    return record.read_text(encoding="utf-8")


def _plan(root: Path, folder: Path, record: Path) -> str:
    target = ["--target", "val_acc>=0.92", "--gpus", "t4:1..16"]
    _run(root, folder, ["plan", "--samples", "examples/runs.csv", *target])
    return record.read_text(encoding="utf-8")


def _live(root: Path, folder: Path, record: Path) -> str:
    code, done = folder / "code", folder / "done"
    code.mkdir()
    (code / "train.py").write_text(_TRAIN, encoding="utf-8")
    home = ["--home", str(folder / "home")]
    with _served(root, folder, home):
        _wait_for(lambda: (folder / "home" / "address").exists(), "the API to listen", folder)
        size = ["--gpus", "t4:1..2", "--batch", "32", "--max-batch", "256", "--per-gpu-batch", "8..128"]
        length = ["--epochs", "8", "--data-size", "2048"]
        command = ["--", sys.executable, "train.py", str(done)]
        _run(root, folder, ["submit", "-y", *home, *size, *length, *command], cwd=code)
        _wait_for(done.exists, "the job to end", folder)
        # what the API does for somebody who waits is part of the journey; the command itself is not
        _run(root, folder, ["wait", *home, "train-1"], traced=False)
        # the end is still to be reported and decided upon: until nothing new has run for a while
        known, since = record.read_text(encoding="utf-8"), time.monotonic()
        while time.monotonic() < since + _QUIET_S:
            time.sleep(0.5)
            if len(now := record.read_text(encoding="utf-8")) != len(known):
                known, since = now, time.monotonic()
    return known


#: What is traced, in the order of the table.
JOURNEYS = {
    "live": Journey("a live job", 213, 130, _live),
    "simulation": Journey("a simulation", 84, 55, _simulation),
    "plan": Journey("a plan", 50, 34, _plan),
}


@contextmanager
def _served(root: Path, folder: Path, home: list[str]) -> Iterator[None]:
    arguments = ["serve", "--virtual", "1x4:t4", "--listen", "127.0.0.1:0", *home]
    with (folder / "serve.log").open("wb") as log:
        process = _start(root, folder, arguments, cwd=folder, output=log)
        try:
            yield
        finally:
            _start(root, None, ["down", *home], cwd=folder, output=log).wait()
            process.terminate()
            process.wait()


def _run(
    root: Path, folder: Path, arguments: list[str], *, cwd: Path | None = None, traced: bool = True
) -> None:
    output = folder / "output.log"
    with output.open("wb") as log:
        code = _start(root, folder if traced else None, arguments, cwd=cwd or root, output=log).wait()
    if code:
        said = output.read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"coadapt {' '.join(arguments)} failed with {code}:\n{said}")


def _start(
    root: Path, folder: Path | None, arguments: list[str], *, cwd: Path, output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """``coadapt ARGUMENTS`` of the checkout ``root`` in ``cwd``; traced by the hook in ``folder``, if that is given."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["coadapt"].partition(":")
    program = f"import sys; from {module} import {function} as main; sys.exit(main())"
    path = [str(folder / "hook")] if folder is not None else []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COADAPT_")}
    environment = {**kept, "PYTHONPATH": os.pathsep.join([*path, str(root / "src")])}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def _wait_for(holds: Callable[[], bool], what: str, folder: Path) -> None:
    until = time.monotonic() + _LONGEST_S
    while not holds():
        if time.monotonic() > until:
            kept = shutil.copytree(folder / "home", tempfile.mkdtemp(), dirs_exist_ok=True, symlinks=True)
            raise SystemExit(f"waited {_LONGEST_S:.0f} s for {what}; its home is copied to {kept}")
        time.sleep(0.2)
