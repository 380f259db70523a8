"""Every synchronisation architecture with real processes: the same steps, to the last digits where it is synchronous."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.integration.torch_forks import free_port, start, wait

pytestmark = pytest.mark.xdist_group("synchronisation")

WORKER = Path(__file__).with_name("sync_worker.py")
SYNCHRONOUS = ("ring", "ring-late", "central", "servers:1", "servers:2")


def ran(replicas: int, tried: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """What every replica says, by architecture and optimizer."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(replicas)}
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / str(rank) for rank in range(replicas)]
        started = [
            start(WORKER, (), {**common, "RANK": str(rank), "TRIED": json.dumps(tried)}, file)
            for rank, file in enumerate(files)
        ]
        codes = wait(started)
        said = [file.read_text() for file in files]
    assert codes == [0] * replicas, said
    # errors go to the same file; the answer is the last line
    return [json.loads(text.splitlines()[-1]) for text in said]


@pytest.fixture(scope="module")
def lone() -> dict[str, Any]:
    """One process that sees all examples, with and without servers."""
    names = ("ring", "servers:2", "async-servers:2")
    return ran(1, [(name, kind) for name in names for kind in ("sgd", "adam")])[0]


@pytest.fixture(scope="module")
def three() -> list[dict[str, Any]]:
    asked = [(name, kind) for name in SYNCHRONOUS for kind in ("sgd", "adam")]
    return ran(3, [*asked, ("async-servers:2", "sgd"), ("async-servers:1:0", "sgd")])


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_uneven_shares_make_the_step_of_a_single_process(
    name: str, kind: str, lone: dict[str, Any], three: list[dict[str, Any]]
) -> None:
    for replica in three:
        assert replica[f"{name} {kind}"]["parameters"] == pytest.approx(
            lone[f"ring {kind}"]["parameters"], abs=1e-12
        )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("name", ["servers:2", "async-servers:2"])
def test_one_worker_with_servers_trains_as_without(name: str, kind: str, lone: dict[str, Any]) -> None:
    with_servers, plain = lone[f"{name} {kind}"], lone[f"ring {kind}"]
    assert with_servers["parameters"] == pytest.approx(plain["parameters"], abs=1e-12)
    # the optimizer's state comes home from the servers, cut across parameters as it was
    assert with_servers["moments"] == pytest.approx(plain["moments"], abs=1e-12)
    assert plain["moments"]


def test_asynchronous_replicas_end_near_the_same_and_share_the_servers_parameters(
    lone: dict[str, Any], three: list[dict[str, Any]]
) -> None:
    for name in ("async-servers:2 sgd", "async-servers:1:0 sgd"):
        errors = [replica[name]["error"] for replica in three]
        assert max(errors) < 1.5 * lone["ring sgd"]["error"]
    # not in step: what replicas saw last differs
    assert len({tuple(replica["async-servers:2 sgd"]["parameters"]) for replica in three}) > 1
