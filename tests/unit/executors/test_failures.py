from __future__ import annotations

import pytest

from coadapt.executors.gang.verdict import Exit, judge, kind_of, lost_peer, reported_kind
from coadapt.executors.node.processes import OomWatch
from coadapt.executors.node.replica_logs import masked, tail

NCCL = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms"
GLOO = "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"
PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


@pytest.mark.parametrize(
    ("code", "lines", "oom_killed", "kind"),
    [
        (0, "", False, ""),
        (143, "", False, ""),
        (-15, "", False, ""),
        (1, "Traceback\nValueError: no", False, "exception"),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", False, "oom"),
        (1, "MemoryError", False, "oom"),
        (-9, "", True, "oom"),
        (137, "", True, "oom"),
        (-9, "", False, "killed"),
        (137, "", False, "killed"),
        (1, "", True, "exception"),  # somebody else was killed
        (-6, NCCL, False, "collective"),
        (1, GLOO, False, "collective"),
        (1, "requests.exceptions.ConnectTimeout: read timed out", False, "exception"),
        (-11, "", False, "exception"),  # a crash of its own
        (-1, "", False, "killed"),
    ],
)
def test_kind_of_failure(code: int, lines: str, oom_killed: bool, kind: str) -> None:
    assert kind_of(code, lines, oom_killed=oom_killed) == kind


def an_exit(rank: int, code: int, lines: str = "", *, asked: bool = False) -> Exit:
    kind = kind_of(code, lines, oom_killed=False)
    return Exit(rank=rank, code=code, asked=asked, kind=kind, lost_peer=lost_peer(lines))


def test_first_failure_in_time_is_named_whatever_its_rank() -> None:
    end, why = judge([an_exit(3, 1, "ValueError"), an_exit(0, 1, "ValueError", asked=True)])
    assert (end, why and why.rank) == ("failed", 3)


def test_rank_that_lost_its_peer_does_not_count_even_if_it_was_noticed_first() -> None:
    exits = [
        an_exit(0, 1, PEER),
        an_exit(1, 1, "ValueError: shapes", asked=True),
        an_exit(2, 1, PEER, asked=True),
    ]
    end, why = judge(exits)
    assert end == "failed"
    assert why is not None
    assert (why.rank, reported_kind(why)) == (1, "exception")


def test_peers_lost_without_another_reason_are_a_failed_collective() -> None:
    _, why = judge([an_exit(1, 1, PEER), an_exit(0, -15, asked=True)])
    assert why is not None
    assert (why.rank, reported_kind(why)) == (1, "collective")


def test_peers_of_one_that_was_preempted_do_not_fail_the_job() -> None:
    end, why = judge([an_exit(1, 1, PEER), an_exit(0, -15)])
    assert (end, why and why.rank) == ("stopped", 0)


def test_secrets_are_masked() -> None:
    envs = {
        "WANDB_API_KEY": "abcd1234",
        "EPOCHS": "4000",
        "DB_PASSWORD": "x",
        "AWS_SECRET": "abcd1234-and-more",
    }
    text = "key abcd1234-and-more abcd1234 for 4000 at https://me:hunter2@host/x token-of-job"
    assert masked(text, envs, "token-of-job") == "key *** *** for 4000 at https://me:***@host/x ***"


def test_tail_is_what_a_terminal_shows_last() -> None:
    data = b"".join(b"line %d\n" % i for i in range(30)) + b"\n  5%|#\r 10%|##\r\n\x1b[31mred\x00\n\xff\n"
    lines = tail(data).split("\n")
    assert len(lines) == 20
    assert lines[-3:] == [" 10%|##", "red", "\ufffd"]
    assert lines[0] == "line 13"
    assert tail(b"") == ""


def test_kill_by_the_kernel_is_known_for_a_while() -> None:
    count = 3
    watch = OomWatch(lambda: count)
    watch.look(0.0)
    assert not watch.grew(1.0)
    count = 4
    watch.look(3.0)  # seen before the exit is
    assert watch.grew(4.0)
    watch.look(7.0)
    watch.look(20.0)
    watch.look(31.0)
    assert not watch.grew(31.0)
