"""``plan``, ``submit``, the API and ``serve`` read what people write alike: taken with the same meaning, or refused with the same line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coadapt.client.submission import read_submission
from coadapt.errors import InputError
from coadapt.live.serve_process import options_of
from coadapt.model import JobSpec
from coadapt.planning.plan_api import gpu_ranges
from coadapt.planning.request import Request, question_of, target_of
from coadapt.spec.job_rules import Surroundings, check_spec
from coadapt.spec.prices import read_prices
from coadapt.spec.target import stored_target
from coadapt.store.home import Home

TARGETS = [
    *("val_acc>=0.93", "val_acc >= 0.93", " val_acc>=.93 ", "wer<=25", "loss<=-1e-3", "val/acc.top-1>=0.9", "F1>=1"),
    *("val_acc>0.92", "val_acc>=92%", "val_acc=>0.92", "val_acc<0.92", "loss=<2", "acc>=93.5 %", "acc>92%"),
    *("top-1 acc>=0.9", "top-1 acc > 90%", "a (b)>=1", "größe>=1", "x%>=1"),
    *("", "0.93", "val_acc", "acc=0.9", "acc==0.9", "acc>=high", "acc>=1.2.3", "acc>=nan", "acc>=inf", ">=3", "a>>1", "a>=b>=1"),
    *("a\n>=1", "a" * 300 + ">=1"),
]  # fmt: skip


def answer(call: Callable[[], Any]) -> Any:
    """What comes back, or the line that refuses."""
    try:
        return call()
    except InputError as error:
        return f"refused: {error}"


def submitted(options: dict[str, Any], *given: str) -> JobSpec:
    spec = read_submission(given, **options).spec
    check_spec(spec, Surroundings(jobs=spec.after))
    return spec


@pytest.mark.parametrize("text", TARGETS)
def test_target_means_the_same_everywhere(text: str, tmp_path: Path) -> None:
    planned = answer(lambda: tuple(target_of(Request(target=text), {}) or ()))
    if text:

        def by_submit() -> Any:
            target = submitted({"target": text}, "python", "train.py").target
            assert target is not None
            return tuple(stored_target(target) or ())

        def by_api() -> Any:
            check_spec(JobSpec(name="x", command=("x",), target=text), Surroundings())
            return tuple(stored_target(text) or ())

        assert answer(by_submit) == planned
        assert answer(by_api) == planned


def test_options_win_over_the_file_for_both(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "run: x\nresources: {accelerators: no}\ngpus_per_replica: 2\ntarget: none\ndeadline: soon\nbatch: {per_gpu: 8..64}\n"
    )
    spec = submitted(
        {"gpus": "t4:4", "target": "a>1%", "deadline": "6h", "batch": 32, "max_batch": 64}, str(path)
    )
    request = Request(spec=str(path), gpus="t4:4", target="a>1%", deadline="6h", batch="32..64")
    planned = request.read_spec()
    assert [tuple(each) for each in gpu_ranges(request, planned)] == [("t4", 4, 4)]
    assert (spec.worker.min, spec.gpus_per_replica) == (2, planned["gpus_per_replica"])
    assert spec.batch is not None
    assert (planned["batch"]["initial"], planned["batch"]["max"]) == (spec.batch.initial, spec.batch.max)
    assert target_of(request, planned) == stored_target(spec.target or "")


TAKEN = {
    "least": "run: python train.py\nresources: {accelerators: 't4:1..8'}\n",
    "number of GPUs": "run: x\nresources: {accelerators: 4}\n",
    "type alone": "run: x\nresources: {accelerators: t4}\n",
    "capitals": "run: x\nresources: {accelerators: 'T4:2..4'}\n",
    "several types": "run: x\nresources: {accelerators: 'a100:1..4,t4:1..4'}\n",
    "nodes": "run: x\nresources: {accelerators: 't4:4'}\nnum_nodes: 2\n",
    "percent": "run: x\nresources: {accelerators: 't4:1'}\ntarget: val_acc>92%\n",
    "deadline": "run: x\nresources: {accelerators: 't4:1'}\ndeadline: 6h\n",
    "seconds": "run: x\nresources: {accelerators: 't4:1'}\ndeadline: 21600\n",
    "clock": "run: x\nresources: {accelerators: 't4:1'}\ndeadline: 23:59\n",
    "date": "run: x\nresources: {accelerators: 't4:1'}\ndeadline: 2099-01-01\n",
    "passes": "run: x\nresources: {accelerators: 't4:1'}\npasses: 3\n",
    "epochs": "run: x\nresources: {accelerators: 't4:1'}\nepochs: 2.5\n",
    "batch": "run: x\nresources: {accelerators: 't4:1'}\nbatch: {initial: 32, max: 256, per_gpu: 8..64}\n",
    "keys of plan": "run: x\nresources: {accelerators: 't4:1'}\nbudget: $40\nlr: 1e-3\nlr_rule: sqrt\nuser: ada\n",
    "keys of submit": "run: x\nresources: {accelerators: 't4:1', cpus: 2, memory: 4G}\nsetup: make\nretries: 2\nteam: a\nafter: b-1\n",
    "empty values": "run: x\nresources: {accelerators: 't4:1'}\nbatch:\nenvs:\n",
}  # fmt: skip
REFUSED = {
    "unknown key": "run: x\ndeadlin: 6h\n",
    "unknown key below": "run: x\nbatch: {initail: 3}\n",
    "no target": "run: x\ntarget: very good\n",
    "no deadline": "run: x\ndeadline: soon\n",
    "deadline below 0": "run: x\ndeadline: -5\n",
    "no GPUs": "run: x\nresources: {accelerators: 't4;4'}\n",
    "several ranges": "run: x\nresources: {accelerators: 't4:1..2,a100:1..4'}\n",
    "resources a text": "run: x\nresources: t4\n",
    "batch a number": "run: x\nbatch: 32\n",
    "batch a text": "run: x\nbatch: {initial: many}\n",
    "per GPU": "run: x\nbatch: {initial: 32, per_gpu: few}\n",
    "both amounts": "run: x\nepochs: 3\npasses: 3\n",
    "no amount": "run: x\nepochs: lots\n",
    "budget": "run: x\nbudget: forty\n",
    "rule": "run: x\nlr_rule: cube\n",
    "roles": "run: x\nroles: {worker: {}}\n",
    "priority": "run: x\npriority: 99\n",
    "retries": "run: x\nretries: 500\n",
    "name": "run: x\nname: my job\n",
    "pattern": "run: x\nmetrics: {a: '('}\n",
    "slow pattern": "run: x\nmetrics: {a: '((a+)+)'}\n",
    "variable": "run: x\nenvs: {COADAPT_JOB: y}\n",
    "no YAML": "run: [\n",
    "no mapping": "- a\n",
}  # fmt: skip


JOB_FILES = TAKEN | REFUSED


@pytest.mark.parametrize("name", JOB_FILES)
def test_job_file_means_the_same_to_plan_and_submit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB_FILES[name])

    def by_plan() -> Any:
        request = Request(spec=str(path))
        spec = request.read_spec()
        target = target_of(request, spec)
        ranges = gpu_ranges(request, spec)
        question = question_of(request, spec, target, [each.gpu_type for each in ranges])
        batch = spec.get("batch") or {}
        return (
            sorted(tuple(each) for each in ranges),
            None if target is None else tuple(target),
            question.epochs,
            (batch.get("initial"), batch.get("max")) if batch else None,
            None if question.deadline_s is None else pytest.approx(question.deadline_s, abs=5),
        )

    def by_submit() -> Any:
        spec = submitted({}, str(path))
        each = spec.gpus_per_replica
        sizes = spec.worker.min * each, spec.worker.max * each
        target = None if spec.target is None else tuple(stored_target(spec.target) or ())
        batch = None if spec.batch is None else (spec.batch.initial, spec.batch.max)
        return (
            sorted((kind, *sizes) for kind in spec.gpu_types or ("gpu",)),
            target,
            spec.epochs,
            batch,
            spec.deadline_s,
        )

    planned = answer(by_plan)
    assert answer(by_submit) == planned
    assert isinstance(planned, str) == (name in REFUSED)
    if isinstance(planned, str):
        assert "\n" not in planned
        assert str(path) in planned


PRICES = {
    "p.yaml": [
        *("t4: 0.35\n", "T4: 0.35\n", "NVIDIA T4: 0.35\n", "t4: 0.35\ncurrency: EUR\n", "t4: 1\na100: 2\n", "T4: 1\nt4: 1\n"),
        *("t4: 35e-2\n", "t4: '0.35'\n", "t4: 0\n", "cpu: 1\nt4: 2\n", "gpu: 1\nt4: 2\n"),
        *("a1000: 2\n", "t4: free\n", "t4: -1\n", "t4: .nan\n", "t4: true\n", "T4: 1\nt4: 2\n", "- t4\n", "{}\n", "t4: [\n", "currency: EUR\n"),
    ],
    "p.json": ['{"T4": 0.35}', '{"t4": 3.5e-1, "currency": "EUR"}', "[]", "{"],
    "p.csv": ["gpu,price\nT4,0.5\n", "gpu,price\nt4,0.5\na100,2\n", "card,cost\nt4,1\n", "gpu,price\nt4,dear\n", "gpu,price\n"],
}  # fmt: skip


@pytest.mark.parametrize(("file", "text"), [(file, text) for file in PRICES for text in PRICES[file]])
def test_price_file_means_the_same_to_plan_and_serve(file: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_text(text)

    def by_plan() -> Any:
        question = question_of(Request(prices=str(path)), {}, None, ["t4"])
        return question.price("t4")

    def by_serve() -> Any:
        options = options_of(Home(tmp_path / "home"), (), {"virtual": "1x2:t4", "prices": str(path)})
        return read_prices(options.prices).of("t4")

    planned = answer(by_plan)
    assert answer(by_serve) == planned
    assert not isinstance(planned, str) or "\n" not in planned
