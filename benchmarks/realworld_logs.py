"""Logs as found: how many give an ETA or name the one number that is missing, crashes, and the CPU time of a large log.

A log counts where it tells progress and time: a person finds both in it. The logs that do not are named in ``WITHOUT``, each with its reason.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import realworld_records as records
from benchmarks.cells import cell, source_hash
from benchmarks.smoke import either
from coadapt.errors import CoadaptError
from coadapt.explain import watch_log
from coadapt.prediction.training_log import LogReader
from coadapt.testing.log_formats import mutilated

#: Logs that tell no progress or no time, by reading them.
WITHOUT = {
    "gluoncv_depth_0.log": "no times",
    "gluoncv_seg_0.log": "no times",
    "gluonnlp_sent_1.log": "no times but words per second, of an unknown number of words",
    "nanogpt_2024-06-06_AdamW.log": "no times",
    "user_Phi2_microsoft_model_finetuning_training.log": "no progress",
    "mlperf_v1.1_Fujitsu_bert.log": "evaluations of one epoch: no progress",
    "mlperf_v1.1_Samsung_bert.log": "evaluations of one epoch: no progress",
}
SOURCES = ("prediction/training_log/**/*.py", "prediction/remaining/eta_estimate.py", "explain/log_watch.py")
MUTILATED = 5000
MUST, AIM = 0.75, 0.90
BYTES, CPU_S = 100 << 20, 3.0


def run() -> bool:
    """Prints the figures; whether all targets are met."""
    sources = source_hash(SOURCES, setting=("realworld_logs.py", "realworld_records.py"))
    found = cell("realworld-watch", {}, sources, watched)
    answers = found["answers"]
    counted = {name: said for name, said in answers.items() if name not in WITHOUT}
    good = sum(said in ("ETA", "missing") for said in counted.values())
    share = good / len(counted)
    print(f"logs that tell progress and time: {len(counted)} of {len(answers)}; at half, as watch sees them:")
    for said, count in Counter(counted.values()).most_common():
        print(f"  {said:28s} {count}")
    print(f"an ETA, or the one missing number named: {share:.0%} (must {MUST:.0%}, aim {AIM:.0%})")
    others = Counter(said for name, said in answers.items() if name in WITHOUT)
    print(f"  the other {len(answers) - len(counted)}: {dict(others)}")
    torn = cell(
        "realworld-mutilated",
        {"count": either(50, MUTILATED)},
        sources,
        lambda: crashes(either(50, MUTILATED)),
    )
    print(
        f"crashes on {len(answers)} logs, whole and cut: {found['crashes']} (must 0); on {torn['count']} mutilated ones: {torn['crashes']} (must 0)"
    )
    large = cell(
        "realworld-large",
        {"bytes": either(BYTES // 50, BYTES)},
        sources,
        lambda: large_log(either(BYTES // 50, BYTES)),
    )
    print(
        f"watch on a log of {large['bytes'] >> 20} MB: {large['cpu_s']:.2f} s CPU (must {CPU_S:g}), {large['lines']:,} lines parsed"
    )
    return share >= MUST and found["crashes"] == 0 and torn["crashes"] == 0 and large["cpu_s"] <= CPU_S


def watched() -> dict[str, Any]:
    """What ``watch`` says about each log at half of its time (of its lines, where it has no clock), and crashes on the way."""
    answers, failed = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        for log in records.logs():
            cut = log.cut(0.5)
            lines = log.text.splitlines(keepends=True)
            texts = [log.text, "".join(lines[: len(lines) // 2]), *([cut[0]] if cut else [])]
            for text in texts:
                path.write_text(text)
                answers[log.name] = answer(path)
                failed += answers[log.name] == "crash"
    return {"answers": answers, "crashes": failed}


def answer(path: Path) -> str:
    """What ``coadapt watch`` says about a log, in a word."""
    try:
        found = watch_log(path, keep=False)
    except CoadaptError:
        return "no progress"
    except Exception:
        logging.getLogger(__name__).exception("crash")
        return "crash"
    if found.eta_s is not None:
        return "ETA"
    return "missing" if found.missing else "too little is done"


class _Raised(logging.Handler):
    """Counts formats that raised: the reader leaves them out and goes on."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def crashes(count: int) -> dict[str, Any]:
    """Readings of mutilated copies of all logs that raise; a format that raises counts, too."""
    handler = _Raised()
    logger = logging.getLogger("coadapt.prediction.training_log.reader")
    logger.addHandler(handler)
    texts = [log.text for log in records.logs()]
    failed = made = 0
    for number in range(count):
        text = texts[number % len(texts)]
        # a stretch of a log is as good as the whole, and a hundred times faster
        begin = 997 * number % max(len(text) - 6000, 1)
        (torn,) = mutilated(text[:1500] + text[begin : begin + 6000], count=1, seed=number)
        made += 1
        try:
            reader = LogReader()
            reader.feed(torn)
            reader.progress()
        except Exception:
            failed += 1
    logger.removeHandler(handler)
    return {"count": made, "crashes": failed + handler.count}


def large_log(size: int) -> dict[str, Any]:
    """CPU time of ``watch`` on a log of ``size`` bytes, and the lines that it parsed."""
    line = "step {0}/{1} loss=0.{0} lr=0.001 grad_norm=1.25 time 0.125s tokens 4096 mem 31.2GiB\n"
    count = size // len(line.format(1_000_000, 1_250_000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.log"
        with path.open("w") as stream:
            stream.writelines(line.format(step, 2 * count) for step in range(count))
        written = path.stat().st_size
        began = time.process_time()
        found = watch_log(path, keep=False)
        spent = time.process_time() - began
    assert found.eta_s is not None
    return {"bytes": written, "cpu_s": spent, "lines": sum(found.understood.values())}
