"""Ray's adapter by the published suite, on a real Ray; and what it makes of Ray's words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from coadapt.errors import InputError
from coadapt.executors.engines._base import Engine, EngineRefusedError, EngineSilentError, Unit
from coadapt.executors.engines.ray import RayEngine, RayOptions, named_nodes, ray_options
from coadapt.executors.engines.ray_messages import RayNode
from coadapt.testing import EngineConformance, EngineRoom
from coadapt.testing.engines import CLUSTER
from tests.engines.ray_cluster import RayCluster, ray_cluster, why_not
from tests.engines.unit_processes import guards_of
from tests.waiting import until


class _Room:
    """Agents that nobody lets in: they try, and are there."""

    def __init__(self, cluster: RayCluster) -> None:
        self._options = RayOptions(address=cluster.address, virtual=True)
        self._adapters: list[RayEngine] = []
        self.engine: Engine = self.adapter()

    def adapter(self) -> Engine:
        self._adapters.append(RayEngine(CLUSTER, self._options, kill_wait_s=5.0))
        return self._adapters[-1]

    def processes(self, unit: str) -> int:
        return guards_of(unit)

    def close(self) -> None:
        engine = self._adapters[0]
        engine.release([unit.name for unit in engine.units() if unit.state != "ended"])
        until(lambda: all(unit.state == "ended" for unit in engine.units()), engine.units)
        for adapter in self._adapters:
            adapter.close()


@pytest.mark.long
@pytest.mark.xdist_group("ray")
class TestRayEngine(EngineConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, running_ray: RayCluster) -> None:
        self.cluster = running_ray

    def room(self, directory: Path) -> EngineRoom:
        return _Room(self.cluster)

    def test_agent_that_cannot_be_started_is_refused_with_the_reason(self) -> None:
        options = RayOptions(address=self.cluster.address, virtual=True, python="/none/such/python")
        engine = RayEngine(CLUSTER, options)
        try:
            node = engine.nodes()[0].node
            engine.claim(Unit(name="coadapt-conforma-x-1", node=node))
            until(lambda: [each.state for each in engine.units()] == ["ended"], engine.units)
            with pytest.raises(EngineRefusedError, match=r"could not start an agent: .*/none/such/python"):
                engine.claim(Unit(name="coadapt-conforma-x-2", node=node))
        finally:
            engine.close()

    def test_node_that_is_gone_is_refused(self) -> None:
        engine = RayEngine(CLUSTER, RayOptions(address=self.cluster.address))
        try:
            node = msgspec.structs.replace(engine.nodes()[0].node, name="n99")
            with pytest.raises(EngineRefusedError, match="Ray has no node n99"):
                engine.claim(Unit(name="coadapt-conforma-n99-1", node=node))
        finally:
            engine.close()

    def test_driver_that_dies_is_silence_and_the_next_finds_everything(self, tmp_path: Path) -> None:
        room = _Room(self.cluster)
        try:
            engine = room.engine
            assert isinstance(engine, RayEngine)
            node = engine.nodes()[0].node
            name = "coadapt-conforma-n1-7"
            variables = {"COADAPT_UNIT": name, "COADAPT_URL": "http://127.0.0.1:9", "COADAPT_NODE_TOKEN": "x"}
            unit = Unit(name=name, node=node, environment=variables)
            engine.claim(unit)
            until(lambda: [each.name for each in engine.units()] == [unit.name])
            assert engine._driver is not None
            engine._driver._process.kill()
            with pytest.raises(EngineSilentError, match="has ended the connection"):
                engine.units()
            until(lambda: _names(engine) == [unit.name])
        finally:
            room.close()


def _names(engine: RayEngine) -> list[str]:
    try:
        return [each.name for each in engine.units()]
    except EngineSilentError:
        return []


@pytest.mark.long
@pytest.mark.xdist_group("ray")
def test_user_without_rights_is_refused_in_one_line(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 40}
    with ray_cluster(tmp_path / "ray", nodes=0, **secret) as cluster:
        engine = RayEngine("", RayOptions(address=cluster.address))
        with pytest.raises(
            InputError, match=r"refuses this user: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN"
        ):
            engine.check()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.2:9", r"no Ray answers at 127.0.0.2:9 \(Connection refused\); is its head running"),
        ("nonsense", "'nonsense' is not the address of a Ray cluster; write HOST:PORT of its head, or auto"),
        ("host:99999", "is not the address of a Ray cluster"),
        ("ray://head:10001", "addresses of Ray Client are not taken; give HOST:PORT of the head"),
    ],
)
def test_address_at_which_no_ray_answers_is_refused_in_one_line(
    address: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_ray(tmp_path, monkeypatch, "__version__ = '2.60.0'\n")
    with pytest.raises(InputError, match=message) as raised:
        RayEngine("", RayOptions(address=address)).check()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("__version__ = '2.9.3'\n", "Ray 2.9.3 is too old; Coadapt needs 2.30 or newer"),
        ("raise ImportError\n", r"Ray is not installed here; pip install 'coadapt\[ray\]'"),
        (
            "__version__ = '2.60.0'\ndef init(**_):\n    raise RuntimeError('Version mismatch: the cluster has Ray: 2.50.0')\n",
            "is of another version than the one installed here: Version mismatch: the cluster has Ray: 2.50.0",
        ),
        (
            "__version__ = '2.60.0'\ndef init(**_):\n    raise ConnectionError('Could not find any')\n",
            "no Ray runs on this machine",
        ),
    ],
)
def test_ray_that_cannot_be_used_is_refused_in_one_line(
    module: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_ray(tmp_path, monkeypatch, module)
    with pytest.raises(InputError, match=message):
        RayEngine("", RayOptions()).check()


def _fake_ray(directory: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (directory / "ray").mkdir()
    (directory / "ray" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(directory))


def test_driver_that_cannot_connect_is_not_followed_at_once_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_ray(
        tmp_path, monkeypatch, f"open({str(tmp_path / 'starts')!r}, 'a').write('x')\nraise ImportError\n"
    )
    engine = RayEngine("", RayOptions())
    for ask in (engine.nodes, engine.units, engine.nodes):
        with pytest.raises(EngineSilentError, match="Ray is not installed here"):
            ask()
    assert (tmp_path / "starts").read_text() == "x"


def test_nodes_are_named_by_label_or_name_or_host() -> None:
    def node(
        number: int, labels: dict[str, str] | None = None, name: str = "", **resources: float
    ) -> RayNode:
        return RayNode(id=f"{number}" * 8, name=name, host="box", resources=resources, labels=labels or {})

    found = named_nodes(
        [
            node(1, {"coadapt/node": "w 1"}, GPU=4, CPU=8, **{"accelerator_type:A100": 1}),
            node(2, name="worker-2", GPU=2),
            node(3, CPU=16),
            node(4, CPU=4),
            node(5, memory=1e9),
        ]
    )
    assert [(n.name, n.gpus, n.gpu_type) for n, _ in found] == [
        ("box-33333333", 16, "cpu"),
        ("box-44444444", 4, "cpu"),
        ("w-1", 4, "a100"),
        ("worker-2", 2, "gpu"),
    ]


def test_unknown_option_of_the_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="unknown field `adress`; Ray takes address, python, virtual"):
        ray_options({"adress": "auto"})
