"""Replicas that are stopped, killed and resized: what they learn is what an undisturbed run learns."""

from __future__ import annotations

import json
import random
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from coadapt.wire.agent import from_line  # noqa: E402
from tests.integration.torch_forks import (  # noqa: E402
    Replicas,
    run,
    until_more_steps,
)

#: Of one epoch of steady.py; and epochs that no test waits for.
STEPS, ENDLESS = 13, "1000000"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters and journal of a run on one replica that nobody disturbs."""
    directory = tmp_path_factory.mktemp("undisturbed")
    run("steady.py", 1, directory, RESULT=str(directory / "result"), COADAPT_AUDIT=str(directory / "audit"))
    return directory


def committed(audit: Path) -> list[dict[str, object]]:
    """Steps that count: one that is made again has replaced those that a kill threw away."""
    steps: dict[int, dict[str, object]] = {}
    for line in audit.read_bytes().splitlines():
        try:
            step = json.loads(line)
        except json.JSONDecodeError:
            continue  # torn by a kill
        steps = {number: other for number, other in steps.items() if number < step["step"]}
        steps[step["step"]] = step
    return list(steps.values())


def made_again(audit: Path) -> list[int]:
    """Steps that were made more than once: a restart makes those since the last checkpoint again."""
    numbers = [json.loads(line)["step"] for line in audit.read_bytes().splitlines()]
    return sorted(number for number, count in Counter(numbers).items() if count > 1)


def _files(directory: Path) -> dict[str, str]:
    """The environment that makes ``steady.py`` leave its parameters and its journal of steps in ``directory``."""
    return {"RESULT": str(directory / "result"), "COADAPT_AUDIT": str(directory / "audit")}


def alone(directory: Path, steps: int) -> list[dict[str, object]]:
    """The steps of a run on one replica that nobody disturbs: more than so many."""
    run("steady.py", 1, directory, EPOCHS=str(steps // STEPS + 1), **_files(directory))
    found = committed(directory / "audit")
    assert len(found) > steps
    return found


def same_training(one: Path, other: Path) -> None:
    """The same examples in the same order, and the same parameters."""
    before, after = committed(one / "audit"), committed(other / "audit")
    places = [[(s["step"], s["passes"], s["position"]) for s in each] for each in (before, after)]
    assert places[0] == places[1]
    for a, b in zip(torch.load(one / "result"), torch.load(other / "result"), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("count", "atomic"), [(2, "16"), (4, "16"), (1, "5"), (3, "2")])
def test_replicas_and_accumulation_learn_what_one_replica_learns(
    count: int, atomic: str, tmp_path: Path, undisturbed: Path
) -> None:
    run("steady.py", count, tmp_path, **_files(tmp_path), ATOMIC=atomic)
    same_training(undisturbed, tmp_path)


def test_stopped_and_killed_at_random_at_other_sizes_learns_the_same(
    tmp_path: Path, undisturbed: Path
) -> None:
    rng = random.Random(3)
    envs = {
        **_files(tmp_path),
        "COADAPT_CHECKPOINTS": str(tmp_path / "kept"),
        "EVERY_S": "0.1",
    }
    (tmp_path / "audit").touch()
    kinds = [signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, None]
    for attempt, (count, kind) in enumerate(zip([1, 2, 4, 2, 1], kinds, strict=True)):
        directory, steps = tmp_path / str(attempt), rng.randint(2, 5)
        # four times no more than that, of 39: a test that is kept waiting does not find the training at its end
        pace = {} if kind is None else _held(directory, steps + 2)
        replicas = Replicas("steady.py", count, directory, COADAPT_ATTEMPT=str(attempt), **envs, **pace)
        if kind is None:
            assert replicas.wait() == [0]
            break
        until_more_steps(tmp_path / "audit", steps)
        replicas.signal(kind)
        if kind == signal.SIGTERM:
            (directory / "go").touch()
            assert replicas.wait() == [143] * count, replicas.output()
        else:
            replicas.wait()
    same_training(undisturbed, tmp_path)


def _held(directory: Path, steps: int) -> dict[str, str]:
    """The environment of a run that makes so many steps, and goes on when there is ``directory``/go."""
    return {"STEP_S": "0.1", "HOLD_AFTER": str(steps), "GO": str(directory / "go")}


@pytest.mark.parametrize("count", [1, 3])
def test_gradients_and_noise_are_those_of_one_process(count: int, tmp_path: Path) -> None:
    said = run("exact.py", count, tmp_path)
    assert re.search(r"checked [23]\d sampled \d", said), said


def test_paced_replicas_do_not_report_their_sleep_as_synchronisation(tmp_path: Path) -> None:
    # computing lasts 0.1 s a step, synchronisation next to nothing
    params = {
        "alpha_c": 0.1,
        "beta_c": 1e-6,
        "alpha_n": 1e-4,
        "beta_n": 1e-6,
        "alpha_r": 1e-4,
        "beta_r": 1e-6,
    }
    (tmp_path / "pace.json").write_text(json.dumps({"params": {**params, "gamma": 1.0}}))
    envs = {
        "RESULT": str(tmp_path / "result"),
        "COADAPT_PACE": str(tmp_path / "pace.json"),
        "COADAPT_JOB": "j",
    }
    said = run("steady.py", 2, tmp_path, EPOCHS="2", **envs)
    reports = [report for line in said.splitlines() if (report := from_line(line)) is not None]
    assert {each.config.batch for report in reports for each in report.measurements} == {16}
    measured = [each for report in reports for each in report.measurements if each.count]
    assert measured
    for each in measured:
        assert each.step_s >= 0.1
        assert each.sync_s <= each.step_s - 0.1 + 1e-9


@pytest.mark.parametrize("every", [1000, 10])
def test_steps_without_a_sample_send_no_message_of_ours(every: int, tmp_path: Path) -> None:
    said = run("quiet.py", 2, tmp_path, EVERY=str(every))
    found = re.search(r"steps 100 messages (\d+) samples (\d+) checks (\d+)", said)
    assert found, said
    messages, samples, checks = map(int, found.groups())
    assert samples == -(-100 // every)
    # A sample sends the gradient, which DDP did not, and what it found. The first two steps send which parameters are used, and their
    # gradient; the first is a sample. A check of the guard is one message, if it is not at the end of an epoch.
    assert 2 * samples + 3 <= messages <= 2 * samples + 3 + checks
    assert 3 <= checks <= 12


@pytest.mark.parametrize("sync", ["ring-late", "central", "servers:2"])
def test_every_synchronous_architecture_learns_what_one_replica_learns(
    sync: str, tmp_path: Path, undisturbed: Path
) -> None:
    run("steady.py", 2, tmp_path, **_files(tmp_path), SYNC=sync)
    same_training(undisturbed, tmp_path)


def test_stopped_with_asynchronous_servers_goes_on_with_their_state(
    tmp_path: Path, undisturbed: Path
) -> None:
    """One worker with servers is never stale: it must learn what it would have learned undisturbed, momentum included."""
    envs = {
        **_files(tmp_path),
        "COADAPT_CHECKPOINTS": str(tmp_path / "kept"),
        "SYNC": "async-servers:2",
    }
    (tmp_path / "audit").touch()
    pace = _held(tmp_path / "0", 12)
    first = Replicas("steady.py", 1, tmp_path / "0", COADAPT_ATTEMPT="0", **envs, **pace)
    until_more_steps(tmp_path / "audit", 8)
    first.signal(signal.SIGTERM)
    (tmp_path / "0" / "go").touch()
    assert first.wait() == [143], first.output()
    run("steady.py", 1, tmp_path / "1", COADAPT_ATTEMPT="1", **envs)
    same_training(undisturbed, tmp_path)


def test_asynchronous_replicas_come_to_an_end_together(tmp_path: Path) -> None:
    envs = {"RESULT": str(tmp_path / "result"), "SYNC": "async-servers:1:2", "EPOCHS": "2"}
    run("steady.py", 3, tmp_path, **envs)
    learned = torch.load(tmp_path / "result")
    assert all(bool(torch.isfinite(p).all()) for p in learned)


def test_stop_that_comes_after_the_last_step_finds_the_job_finished(tmp_path: Path) -> None:
    """It exits with 0 although it was asked to stop, so each replica says that it is done."""
    envs = {"RESULT": str(tmp_path / "result"), "COADAPT_CHECKPOINTS": str(tmp_path / "kept"), "EPOCHS": "1"}
    replicas = Replicas("steady.py", 2, tmp_path, COADAPT_JOB="j", STOP_AT_END="1", **envs)
    assert replicas.wait() == [0, 0], replicas.output()
    for rank in range(2):
        reports = [from_line(line) for line in (tmp_path / f"{rank}.out").read_text().splitlines()]
        assert [report.done for report in reports if report is not None][-1]


def test_job_that_nobody_stops_says_nothing_of_its_end(tmp_path: Path) -> None:
    run("steady.py", 1, tmp_path, RESULT=str(tmp_path / "result"), EPOCHS="1", COADAPT_JOB="j")
    assert '"done"' not in (tmp_path / "0.out").read_text()
