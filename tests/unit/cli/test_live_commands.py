"""The commands of the live cluster against a controller that answers as it was told."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coadapt.cli.main import run
from coadapt.model import JobSpec
from coadapt.spec.code_archive import freeze
from coadapt.wire import api
from tests.unit.client.fake import FakeController, fake_controller

Printed = pytest.CaptureFixture[str]
NOW = time.time()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeController]:
    with fake_controller() as controller:
        monkeypatch.setenv("COADAPT_SERVER", controller.url)
        monkeypatch.setenv("COADAPT_API_TOKEN", "t")
        monkeypatch.chdir(tmp_path)
        # what is left is shown to the second: the clock stands
        monkeypatch.setattr("time.time", lambda: NOW + 30.0)
        controller.answers["GET /v1/cluster"] = api.ClusterNow(
            now=NOW, seq=1, policy="coadapt", gpus=16, free_gpus=4, states={"RUNNING": 1}, nodes=[],
            controller_age_s=1.0, version="0",
        )  # fmt: skip
        yield controller


def a_line(job: str = "bert-3", state: str = "RUNNING", **more: object) -> api.JobLine:
    known = {
        "job": job,
        "name": job,
        "user": "u",
        "team": "",
        "order": 3,
        "state": state,
        "submitted_at": NOW,
    }
    return msgspec.convert({**known, **more}, api.JobLine)


RUNNING = a_line(
    gpus=4, gpu_type="t4", batch=1024, progress=0.42, gpu_s=7200.0, why="runs on 4, not 8: others gain more",
    eta={"value": NOW + 3600, "low": NOW + 3000, "high": NOW + 5400},
)  # fmt: skip


def test_ps_shows_what_a_job_has_and_why(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/jobs"] = api.JobPage(jobs=[RUNNING], total=1)
    assert run(["ps"]) == 0
    out = capsys.readouterr().out
    for part in (
        "4 t4",
        "1,024",
        "42%",
        "59m 30s",
        "(49m 30s",
        "2.00 GPU-h",
        "others gain more",
        "12 of 16 GPUs",
    ):
        assert part in out


def test_ps_shows_the_reason_of_the_present_state(fake: FakeController, capsys: Printed) -> None:
    line = msgspec.structs.replace(RUNNING, failure="exception: replica 0 exited with 1")
    fake.answers["GET /v1/jobs"] = api.JobPage(jobs=[line], total=1)
    assert run(["ps"]) == 0
    out = capsys.readouterr().out
    assert "others gain more" in out
    assert "exception" not in out


def test_ps_of_ended_jobs_needs_all(fake: FakeController, capsys: Printed) -> None:
    old = a_line("old-1", "SUCCEEDED", finished_at=NOW - 7200)
    fake.answers["GET /v1/jobs"] = api.JobPage(jobs=[RUNNING, old], total=2)
    assert run(["ps"]) == 0
    assert "old-1" not in capsys.readouterr().out
    assert run(["ps", "--all", "--json"]) == 0
    assert [each["job"] for each in msgspec.json.decode(capsys.readouterr().out)] == ["bert-3", "old-1"]


def test_ps_marks_a_deadline_at_risk_and_a_controller_that_is_away(
    fake: FakeController, capsys: Printed
) -> None:
    fake.answers["GET /v1/jobs"] = api.JobPage(jobs=[msgspec.structs.replace(RUNNING, late=0.8)], total=1)
    away = msgspec.structs.replace(fake.answers["GET /v1/cluster"], controller_age_s=None)
    fake.answers["GET /v1/cluster"] = away
    assert run(["ps"]) == 0
    printed = capsys.readouterr()
    assert ")!" in printed.out
    assert "controller is not running" in printed.err


def test_why(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/jobs/a-1/why"] = api.Why(
        job="a-1", at=NOW, state="QUEUED", sentence="needs 4 GPUs, 2 are free", next="starts in about 5 minutes",
        holders=[api.Holder(job="b-2", user="bob", gpus=8, eta=NOW + 600), api.Holder(job="", user="eve", gpus=1)], decision=7, decided_at=NOW - 60,
        advice="Deadline: missed by 35s.",
    )  # fmt: skip
    assert run(["why", "a-1", "--at", "2h ago"]) == 0
    out = capsys.readouterr().out
    for part in (
        "a-1 (QUEUED): needs 4 GPUs",
        "b-2",
        "bob",
        "(others)",
        "next: starts in",
        "decision 7",
        "  deadline: missed by 35s.",
    ):
        assert part in out
    assert "at=" in fake.asked[0].path


@pytest.mark.parametrize("name", ["cancel", "pause", "resume", "retry"])
def test_requests_go_to_each_job(fake: FakeController, name: str, capsys: Printed) -> None:
    for job in ("a-1", "b-2"):
        fake.answers[f"POST /v1/jobs/{job}/{name}"] = (202, api.Accepted(number=1))
    assert run([name, "a-1", "b-2"]) == 0
    assert len(fake.asked) == 2


def test_one_wrong_name_does_not_keep_the_others_from_being_asked(
    fake: FakeController, capsys: Printed
) -> None:
    for job in ("a-1", "c-3"):
        fake.answers[f"POST /v1/jobs/{job}/cancel"] = (202, api.Accepted(number=1))
    fake.answers["POST /v1/jobs/b-2/cancel"] = (404, api.Problem(error="there is no job 'b-2'"))
    assert run(["cancel", "a-1", "b-2", "c-3"]) == 2
    said = capsys.readouterr()
    assert [line.partition(".")[0] for line in said.out.splitlines()] == ["Cancelling a-1", "Cancelling c-3"]
    assert said.err == "coadapt: there is no job 'b-2'\n"


def test_request_prints_the_note_of_the_controller(fake: FakeController, capsys: Printed) -> None:
    fake.answers["POST /v1/jobs/a-1/pause"] = (202, api.Accepted(number=1, note="a-1 is already paused."))
    assert run(["pause", "a-1"]) == 0
    assert capsys.readouterr().out == "a-1 is already paused.\n"


def test_ps_of_a_user_without_jobs_names_the_user(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/jobs"] = api.JobPage(jobs=[], total=0)
    assert run(["ps", "--user", "nobody"]) == 0
    assert capsys.readouterr().out == "No jobs of nobody.\n"
    assert run(["ps"]) == 0
    assert "No jobs. Submit one" in capsys.readouterr().out


def test_nodes_of_a_cluster_that_no_machine_has_joined(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/nodes"] = api.NodePage(nodes=[])
    assert run(["nodes"]) == 0
    assert capsys.readouterr().out.strip() == "No nodes. A machine joins with 'coadapt node join URL'."


@pytest.mark.parametrize(
    ("role", "variable"), [("node", "COADAPT_NODE_TOKEN"), ("user", "COADAPT_API_TOKEN")]
)
def test_note_on_a_new_token_names_the_variable_that_takes_it(
    fake: FakeController, capsys: Printed, role: str, variable: str
) -> None:
    made = msgspec.convert({"name": "lab", "role": role, "token": "coadapt-x"}, api.TokenMade)
    fake.answers["POST /v1/tokens"] = (201, made)
    assert run(["token", "create", "lab", "--role", role]) == 0
    printed = capsys.readouterr()
    assert printed.out == "coadapt-x\n"
    assert printed.err.rstrip().endswith(f"Use it as {variable}")


def test_nodes_counts_the_gpus_that_jobs_hold(fake: FakeController, capsys: Printed) -> None:
    drained = api.NodeLine(node="n1", gpus=4, gpu_type="t4", state="drained", jobs={}, free=0)
    fake.answers["GET /v1/nodes"] = api.NodePage(nodes=[drained])
    assert run(["nodes"]) == 0
    assert "0 of 4" in capsys.readouterr().out


def test_undone_drain_is_one_sentence(fake: FakeController, capsys: Printed) -> None:
    fake.answers["POST /v1/nodes/n1/open"] = (202, api.Accepted(number=1))
    assert run(["drain", "n1", "--undo"]) == 0
    assert capsys.readouterr().out == "n1 accepts new replicas again.\n"


def test_dashboard_of_another_controller_is_its_sign_in_page(fake: FakeController, capsys: Printed) -> None:
    for arguments, url in (([], fake.url), (["--server", "https://gpu.example/"], "https://gpu.example")):
        assert run(["dashboard", *arguments]) == 0
        page, hint = capsys.readouterr().out.splitlines()
        assert page == f"{url}/sign-in"
        assert "token" in hint


def test_dashboard_with_a_home_does_not_use_the_variable(
    fake: FakeController, tmp_path: Path, capsys: Printed
) -> None:
    assert run(["dashboard", "--home", str(tmp_path / "none")]) == 4
    assert "no cluster is running" in capsys.readouterr().err


def test_shipped_example_can_be_submitted(fake: FakeController, capsys: Printed) -> None:
    example = Path(__file__).parents[3] / "examples" / "train.yaml"
    fake.answers["POST /v1/preview"] = a_preview()
    assert run(["submit", str(example), "--dry-run", "--json"]) == 0
    spec = msgspec.json.decode(capsys.readouterr().out)["spec"]
    assert spec["command"] == ["python", "train.py", "--bs", "128", "--epochs", "90"]


def test_quota_is_read_as_a_number(fake: FakeController) -> None:
    fake.answers["PUT /v1/quotas/bob"] = (202, api.Accepted(number=1))
    assert run(["quota", "bob", "0000000008"]) == 0
    assert b'"gpus":8' in fake.asked[0].body.replace(b" ", b"")


def test_budgets_are_set_and_said(fake: FakeController, capsys: Printed) -> None:
    fake.answers["PUT /v1/quotas/bob"] = (202, api.Accepted(number=1))
    assert run(["quota", "bob", "--priority", "2", "--deadlines", "1"]) == 0
    assert json.loads(fake.asked[0].body) == {"priority": 2, "deadlines": 1}
    assert capsys.readouterr().out.splitlines() == [
        "Priorities of bob now count against other users up to 2.",
        "bob may now have 1 job with a deadline at a time.",
    ]
    assert run(["quota", "bob", "none", "--deadlines", "none"]) == 0
    assert json.loads(fake.asked[1].body) == {"gpus": None, "deadlines": None}


def test_members_of_a_team_are_set_and_shown(fake: FakeController, capsys: Printed) -> None:
    fake.answers["PUT /v1/quotas/vision"] = (202, api.Accepted(number=1))
    assert run(["quota", "vision", "16", "--members", "ada, bob"]) == 0
    assert json.loads(fake.asked[0].body) == {"gpus": 16, "members": ["ada", "bob"]}
    assert capsys.readouterr().out.splitlines() == [
        "The quota of vision is now 16 GPUs.",
        "Members of team vision are now ada, bob.",
    ]
    assert run(["quota", "vision", "--members", "none"]) == 0
    assert json.loads(fake.asked[1].body) == {"members": None}
    assert capsys.readouterr().out == "Team vision has no list of members now.\n"
    line = api.QuotaLine(group="vision", gpus=16, used=0, members=["ada", "bob"])
    fake.answers["GET /v1/quotas"] = api.QuotaPage(quotas=[line])
    assert run(["quota"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "ada,bob"


def test_token_of_a_machine_names_its_nodes(fake: FakeController, capsys: Printed) -> None:
    fake.answers["POST /v1/tokens"] = (201, api.TokenMade(name="lab", role="node", token="coadapt-x"))
    assert run(["token", "create", "lab", "--role", "node", "--node", "r1", "--node", "gpu-*"]) == 0
    assert json.loads(fake.asked[0].body)["nodes"] == ["r1", "gpu-*"]
    lines = [
        api.TokenLine(name="lab", role="node", made_at=0.0, nodes=["r1", "gpu-*"]),
        api.TokenLine(name="new", role="node", made_at=0.0, nodes=[]),
        api.TokenLine(name="old", role="node", made_at=0.0),
        api.TokenLine(name="zoe", role="user", made_at=0.0),
    ]
    fake.answers["GET /v1/tokens"] = api.TokenPage(tokens=lines)
    capsys.readouterr()
    assert run(["token", "list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    ends = ("r1 gpu-*", "(of the first machine that joins)", "*", "-")
    assert all(line.rstrip().endswith(end) for line, end in zip(shown[1:], ends, strict=True)), shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--priority", "2"], "the user or team is missing"),
        (["--members", "ada"], "the user or team is missing"),
        (["bob", "--deadlines", "many"], "'many' is not a number of jobs; write a whole number, or 'none'"),
        (["bob", "--deadlines", "-1"], "'-1' is not a number of jobs"),
    ],
)
def test_budgets_written_wrongly(fake: FakeController, capsys: Printed, words: list[str], said: str) -> None:
    assert run(["quota", *words]) == 2
    assert said in capsys.readouterr().err
    assert not fake.asked


def test_a_deadline_that_cannot_be_promised_ends_with_3(
    fake: FakeController, tmp_path: Path, capsys: Printed
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    code = hashlib.sha256(freeze(tmp_path).data).hexdigest()
    fake.answers[f"PUT /v1/code/{code}"] = (201, api.Accepted())
    refusal = "the deadline in 1h cannot be promised; the earliest that can be is in 2h"
    fake.answers["POST /v1/preview"] = (503, api.Problem(error="not now"))
    fake.answers["POST /v1/jobs"] = (409, api.Problem(error=refusal, code="deadline", earliest_s=7200.0))
    assert run(["submit", "--yes", "--deadline", "1h", "--", "true"]) == 3
    assert capsys.readouterr().err.endswith(f"coadapt: {refusal}\n")
    fake.answers["POST /v1/jobs"] = (201, api.Submitted(job="true-1", note="Submitted without its deadline."))
    assert run(["submit", "--yes", "--deadline", "1h", "--drop-deadline", "--", "true"]) == 0
    assert json.loads(fake.asked[-1].body)["drop_deadline"] is True
    assert "Submitted without its deadline." in capsys.readouterr().err


def test_request_for_a_job_that_is_not_there_is_one_line(fake: FakeController, capsys: Printed) -> None:
    fake.answers["POST /v1/jobs/x/cancel"] = (404, api.Problem(error="no job 'x'; did you mean 'x-1'?"))
    assert run(["cancel", "x"]) == 2
    assert capsys.readouterr().err == "coadapt: no job 'x'; did you mean 'x-1'?\n"


@pytest.mark.parametrize(
    ("state", "code"), [("SUCCEEDED", 0), ("FAILED", 100), ("CANCELLED", 103), ("RUNNING", 101)]
)
def test_wait_tells_by_its_exit_code(fake: FakeController, state: str, code: int, capsys: Printed) -> None:
    detail = api.JobDetail(line=a_line("a-1", state), spec=JobSpec(name="a"), placement={})
    fake.answers["GET /v1/jobs/a-1"] = detail
    assert run(["wait", "a-1", "--timeout", "0s"]) == code


def test_wait_for_a_job_that_is_not_there(fake: FakeController, capsys: Printed) -> None:
    assert run(["wait", "a-1"]) == 102


def test_update_counts_a_deadline_from_now(fake: FakeController) -> None:
    line = a_line("a-1", submitted_at=time.time() - 1000)
    fake.answers["GET /v1/jobs/a-1"] = api.JobDetail(line=line, spec=JobSpec(name="a"), placement={})
    fake.answers["PATCH /v1/jobs/a-1"] = (202, api.Accepted(number=1))
    assert run(["update", "a-1", "--deadline", "1h", "--max-gpus", "4"]) == 0
    change = msgspec.json.decode(fake.asked[-1].body, type=api.Update)
    assert change.max_gpus == 4
    assert change.deadline_s is not None
    assert 4590 < change.deadline_s < 4700


def test_update_of_nothing_is_refused(fake: FakeController, capsys: Printed) -> None:
    assert run(["update", "a-1"]) == 2
    assert "nothing to change" in capsys.readouterr().err
    assert not fake.asked


def test_logs_reads_on_until_there_is_no_more(fake: FakeController, capsys: Printed) -> None:
    parts = [
        api.LogPart(text="one\n", offset=4, attempt=1),
        api.LogPart(text="two\n", offset=8, attempt=1),
        api.LogPart(text="", offset=8, attempt=1, ended=True),
    ]
    fake.answers["GET /v1/jobs/a-1/logs"] = parts
    assert run(["logs", "a-1"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize(("terminal", "shown"), [(True, "red\n"), (False, "\x1b[31mred\x1b]0;title\x07\n")])
def test_logs_command_no_terminal(
    terminal: bool, shown: str, fake: FakeController, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers["GET /v1/jobs/a-1/logs"] = [
        api.LogPart(text="\x1b[31mred\x1b]0;title\x07\n", offset=4, attempt=1, ended=True)
    ]
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    # click would remove colours itself where there is no terminal
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda stream, color: False)
    assert run(["logs", "a-1"]) == 0
    assert capsys.readouterr().out == shown


def test_logs_follows_into_the_next_attempt(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/jobs/a-1/logs"] = [
        api.LogPart(text="one\n", offset=4, attempt=1),
        api.LogPart(text="", offset=4, attempt=1, ended=True),
        api.LogPart(text="two\n", offset=4, attempt=2),
        api.LogPart(text="", offset=4, attempt=2, ended=True),
    ]
    fake.answers["GET /v1/jobs/a-1"] = [
        api.JobDetail(line=a_line("a-1", "RUNNING", attempt=2), spec=JobSpec(name="a"), placement={}),
        api.JobDetail(line=a_line("a-1", "SUCCEEDED", attempt=2), spec=JobSpec(name="a"), placement={}),
    ]
    assert run(["logs", "-f", "a-1"]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"


def a_preview() -> api.Preview:
    finishes = api.Interval(value=NOW + 7200, low=NOW + 7000, high=NOW + 9000)
    return api.Preview(
        chosen=api.Option(gpus=8, batch=1024, starts_at=NOW + 10800, finishes=finishes, gpu_s=57600.0),
        others=[api.Option(gpus=4, batch=512, starts_at=NOW, finishes=finishes, gpu_s=47000.0)],
        sentence="with 4 instead of 8: starts 3 h earlier, 18% cheaper",
    )


def test_submit_shows_what_it_means_uploads_and_submits(
    fake: FakeController, tmp_path: Path, capsys: Printed
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    fake.answers["POST /v1/preview"] = a_preview()
    fake.answers["POST /v1/jobs"] = (201, api.Submitted(job="train-1"))
    code = hashlib.sha256(freeze(tmp_path).data).hexdigest()
    fake.answers[f"PUT /v1/code/{code}"] = (201, api.Accepted())
    arguments = [
        "submit",
        "-y",
        "--gpus",
        "t4:1..8",
        "--batch",
        "128",
        "--max-batch",
        "4096",
        "--per-gpu-batch",
        "32..1024",
        "--env",
        "A=b=c",
    ]
    assert run([*arguments, "--", "python", "train.py", "--lr", "0.1"]) == 0
    out = capsys.readouterr().out
    assert "18% cheaper" in out
    assert "Submitted train-1." in out
    spec = msgspec.json.decode(fake.asked[-1].body, type=api.Submit).spec
    assert spec.command == ("python", "train.py", "--lr", "0.1")
    assert spec.envs == {"A": "b=c"}
    assert spec.code == code
    assert (spec.worker.min, spec.worker.max) == (1, 8)
    assert spec.batch is not None
    assert (spec.batch.per_gpu_min, spec.batch.per_gpu_max) == (32, 1024)
    assert "\n  1..8 " in out


def test_submit_without_a_terminal_needs_yes(fake: FakeController, tmp_path: Path, capsys: Printed) -> None:
    fake.answers["POST /v1/preview"] = a_preview()
    assert run(["submit", "--", "true"]) == 2
    said = capsys.readouterr()
    assert said.err == "coadapt: cannot ask for confirmation: standard input is not a terminal; use --yes\n"
    # no preview was made and then thrown away
    assert said.out == ""
    assert not fake.asked


def test_submit_shows_why_a_job_above_its_quota_is_refused(fake: FakeController, capsys: Printed) -> None:
    refusal = "the job needs 4 GPUs; the quota of ada is 2, so it could never start"
    fake.answers["POST /v1/preview"] = (422, api.Problem(error=refusal))
    assert run(["submit", "--dry-run", "--gpus", "4", "--", "true"]) == 2
    assert capsys.readouterr().err == f"coadapt: {refusal}\n"


def test_hints_repeat_the_cluster_that_was_given(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/jobs"] = api.JobPage(jobs=[], total=0)
    assert run(["ps"]) == 0
    assert "Submit one: coadapt submit -- python" in capsys.readouterr().out
    assert run(["ps", "--server", fake.url]) == 0
    assert f"Submit one: coadapt submit --server {fake.url} -- python" in capsys.readouterr().out


def test_submit_without_a_prediction_goes_on_and_says_so(
    fake: FakeController, tmp_path: Path, capsys: Printed
) -> None:
    fake.answers["POST /v1/preview"] = (503, api.Problem(error="not now"))
    assert run(["submit", "--dry-run", "--", "true"]) == 0
    assert "no prediction" in capsys.readouterr().err


def test_file_and_options_are_joined(fake: FakeController, tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: a\nrun: python t.py --bs {batch_size} --epochs {epochs}\nepochs: 3\nbatch: {initial: 64}\n"
    )
    fake.answers["POST /v1/preview"] = a_preview()
    assert run(["submit", "job.yaml", "--dry-run", "--json", "--epochs", "5", "--name", "b"]) == 0
    spec = msgspec.json.decode(capsys.readouterr().out)["spec"]
    assert spec["name"] == "b"
    assert spec["command"] == ["python", "t.py", "--bs", "64", "--epochs", "5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "must be a mapping"),
        ("run: [\n", "job.yaml:2: not YAML"),
        ("name: x\n", "has no 'run'"),
        ("nam: x\n", "unknown key 'nam'; did you mean 'name'?"),
        ("run: a {lr}\n", "give lr in the job file"),
        ("run: a {epochs}\n", "give epochs in the job file, or --epochs"),
    ],
)
def test_bad_file_is_one_line(
    fake: FakeController, tmp_path: Path, text: str, message: str, capsys: Printed
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert run(["submit", "-y", "job.yaml"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "train.py", "--lr", "1"], "write coadapt submit -- python train.py --lr 1"),
        (["--env", "=secret", "--", "true"], "--env '' has no name"),
        (["--env", "A", "--", "true"], "--env 'A' has no value"),
    ],
)
def test_bad_submission_is_one_line(
    fake: FakeController, arguments: list[str], message: str, capsys: Printed
) -> None:
    assert run(["submit", "-y", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "secret" not in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["ps"], ["why", "a"], ["submit", "-y", "--", "true"], ["nodes"], ["eta"]]
)
def test_nobody_there_is_exit_code_four(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Printed
) -> None:
    monkeypatch.delenv("COADAPT_SERVER", raising=False)
    monkeypatch.setenv("COADAPT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 4
    assert "coadapt serve" in capsys.readouterr().err


def test_nodes_quota_events_eta_checkpoints(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/nodes"] = api.NodePage(
        nodes=[api.NodeLine(node="n0", gpus=4, gpu_type="t4", state="up", jobs={"a-1": 3}, free=1)]
    )
    fake.answers["GET /v1/quotas"] = api.QuotaPage(quotas=[api.QuotaLine(group="bob", gpus=8, used=3)])
    fake.answers["PUT /v1/quotas/bob"] = (202, api.Accepted(number=1))
    fake.answers["GET /v1/events"] = api.EventPage(
        events=[api.EventLine(seq=5, at=NOW, kind="JobSubmitted", job="a-1", text="submitted by bob")]
    )
    finishes = api.Interval(value=NOW + 600, low=NOW + 500)
    fake.answers["GET /v1/eta"] = api.EtaPage(
        jobs=[api.EtaLine(job="a-1", starts_at=NOW + 60, finishes=finishes)], seq=5, policy="coadapt"
    )
    fake.answers["GET /v1/jobs/a-1/checkpoints"] = api.CheckpointPage(
        checkpoints=[api.CheckpointLine(name="step-100", step=100, bytes=1 << 20, made_at=NOW, whole=False)]
    )
    for arguments, part in (
        (["nodes"], "3 of 4"),
        (["quota"], "bob"),
        (["quota", "bob", "none"], "Removed the quota of bob."),
        (["quota", "bob", "2"], "The quota of bob is now 2 GPUs."),
        (["events"], "JobSubmitted       a-1: submitted by bob"),
        (["events", "a-1"], "JobSubmitted       submitted by bob"),
        (["eta"], "9m 30s"),
        (["checkpoints", "a-1"], "damaged"),
    ):
        assert run(arguments) == 0
        assert part in capsys.readouterr().out, arguments


@pytest.mark.parametrize(
    ("arguments"),
    [
        ["quota", "bob"],
        ["quota", "bob", "-1"],
        ["quota", "bob", "²"],
        ["quota", "bob", "9" * 5000],
        ["why", "a", "--at", "soon"],
        ["why", "a", "--at", "2222-01-01"],
        ["events", "--after", "-5"],
    ],
)
def test_slips_are_one_line(fake: FakeController, arguments: list[str], capsys: Printed) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def an_entry(number: int, **more: object) -> api.AuditLine:
    known = {
        "number": number,
        "at": NOW,
        "user": "ada",
        "role": "user",
        "via": "token",
        "address": "10.0.0.7",
        "action": "cancel",
        "subject": "bert-3",
        "detail": "",
    }
    return msgspec.convert({**known, **more}, api.AuditLine)


def test_audit_shows_who_did_what_oldest_first(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/audit"] = [
        api.AuditPage(entries=[an_entry(9, user="oz", action="drain", subject="n0")], next=9),
        api.AuditPage(
            entries=[an_entry(8, detail="priority 0 -> 3", action="update"), an_entry(7, address="")]
        ),
    ]
    assert run(["audit", "--since", "2h ago", "--user", "ada", "--job", "bert-3"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["TIME", "USER", "ROLE", "FROM", "ACTION", "SUBJECT", "DETAIL"]
    assert "this machine" in lines[0]
    assert lines[1].endswith("priority 0 -> 3")
    assert "oz" in lines[2]
    queries = [asked.path.partition("?")[2] for asked in fake.asked]
    assert len(queries) == 2
    assert all("user=ada" in query and "subject=bert-3" in query and "since=" in query for query in queries)
    assert "before=9" in queries[1]


def test_audit_stops_at_its_limit_and_prints_json(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/audit"] = api.AuditPage(entries=[an_entry(9)], next=9)
    assert run(["audit", "--limit", "1", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)[0]["action"] == "cancel"
    assert len(fake.asked) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--since", "soon"], "soon"),
        (["--since", "2099-01-01"], "is in the future"),
        (["--job", "a-1", "--about", "n0"], "exclude each other"),
        (["--limit", "0"], "0"),
    ],
)
def test_audit_refuses_bad_input_in_one_line(
    fake: FakeController, capsys: Printed, arguments: list[str], said: str
) -> None:
    assert run(["audit", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_audit_of_a_user_is_refused_with_the_reason(fake: FakeController, capsys: Printed) -> None:
    fake.answers["GET /v1/audit"] = (403, {"error": "the role user does not permit this", "retry_after_s": 0})
    assert run(["audit"]) == 2
    assert capsys.readouterr().err.strip() == "coadapt: the role user does not permit this"


def test_eta_says_that_a_forecast_is_coarse(fake: FakeController, capsys: Printed) -> None:
    line = api.EtaLine(job="a-1", starts_at=NOW + 60, finishes=None)
    fake.answers["GET /v1/eta"] = api.EtaPage(
        jobs=[line], seq=1, policy="coadapt", note="Coarse forecast: why."
    )
    assert run(["eta"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("Coarse forecast: why.")
