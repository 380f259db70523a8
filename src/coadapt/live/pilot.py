"""``coadapt up``: an allocation of Slurm, or a cluster of Ray, becomes the cluster.

The controller runs on this machine, which the nodes must reach; no administrator's rights are needed.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from coadapt.errors import InputError
from coadapt.executors import RayEngine, SlurmOptions, pilot_script, ray_options, slurm_options, submit_script
from coadapt.live.connect import connect
from coadapt.live.pilot_renewal import keep_pilot
from coadapt.live.serve_process import serve_in_background
from coadapt.live.supervisor import locked
from coadapt.plugins import assignments
from coadapt.store import open_store
from coadapt.store.home import Home, write_private
from coadapt.store.token_table import Token, new_token, token_hash
from coadapt.units import parse_duration

#: Name of the token of pilots.
_PILOTS = "pilots"
#: Seconds for a controller to hear of the nodes of an engine.
_NODES_S = 30.0


def up_slurm(
    home: Home,
    *,
    nodes: int,
    listen: str = "",
    trusted_network: str = "",
    gpus: str = "auto",
    virtual: str = "",
    renew: bool = True,
    dry_run: bool = False,
    **slurm: str,
) -> list[str]:
    """Submits a pilot to Slurm, and starts a controller on this machine if none runs; returns what to tell the user.

    Args:
        home: of the cluster; it must lie where all nodes see it.
        nodes: how many nodes.
        listen: address of the API, where a controller has to be started; empty: a free port of loopback.
        trusted_network: private network in which the API may listen without TLS.
        gpus: how many GPUs to use on each node; "auto": all of the allocation.
        virtual: virtual GPUs instead, COUNT[:TYPE].
        renew: whether a successor is submitted before the time limit, while jobs run.
        dry_run: only returns the script.
        slurm: where and for whom, see ``SlurmOptions``; ``time`` also as 24h.
    """
    options, offer = (
        slurm_options({**slurm, "time": _slurm_time(slurm.get("time", ""))}),
        offer_of(gpus, virtual),
    )
    token_file = home.path / "pilot_token"
    if dry_run:
        return [_script(home, "coadapt-pilot-ID", options, nodes, token_file, offer)]
    start_server(home, "joined", listen, trusted_network)
    make_token(home, token_file)
    (home.path / "nodes").mkdir(mode=0o700, exist_ok=True)
    name = f"coadapt-pilot-{secrets.token_hex(4)}"
    script = _script(home, name, options, nodes, token_file, offer)
    job = submit_script(script, os.environ)
    if renew:
        keep_pilot(home, name, script)
    lines = [
        f"Submitted batch job {job} of {nodes} node{'s' * (nodes > 1)}; 'coadapt nodes' lists them when Slurm has granted it."
    ]
    lines += loopback_warning(home)
    if renew:
        lines.append("Before its time limit it is renewed while jobs run (--no-renew: it is not).")
    return [*lines, f"To give the nodes back: scancel --name={name}. To stop everything: coadapt down"]


def up_ray(
    home: Home,
    address: str,
    *,
    listen: str = "",
    trusted_network: str = "",
    engine_settings: Sequence[str] = (),
    dry_run: bool = False,
) -> list[str]:
    """Makes a cluster of Ray the cluster, with a controller on this machine, which must be a part of it; returns what to tell the user.

    Args:
        home: of the cluster; checkpoints in it must lie where all nodes see them.
        address: of Ray's head, HOST:PORT; "auto": the cluster that this machine is a part of.
        listen: address of the API; empty: a free port of loopback.
        trusted_network: private network in which the API may listen without TLS.
        engine_settings: further options of the engine, NAME=VALUE, see ``RayOptions``.
        dry_run: starts nothing; returns the nodes, and what would be asked of Ray for one of them.
    """
    given = {"address": address, **assignments(engine_settings)}
    engine = RayEngine("", ray_options(given))
    nodes = [each.node for each in engine.check()]
    count = (
        f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {sum(node.gpus for node in nodes)} GPUs or cores"
    )
    if not nodes:
        raise InputError(
            f"Ray at {address} has no node with GPUs or CPUs; add one: ray start --address=HOST:PORT"
        )
    if dry_run:
        return [
            *(f"# {node.name}: {node.gpus} {node.gpu_type}" for node in nodes),
            engine.sample(nodes[0], url_of(home)),
        ]
    start_server(home, "ray", listen, trusted_network, given)
    _await_nodes(home)
    return [
        f"The cluster of Ray at {address} is the cluster: {count}. 'coadapt nodes' lists them.",
        *loopback_warning(home),
        "To stop everything and give the nodes back: coadapt down",
    ]


def _await_nodes(home: Home) -> None:
    """Waits until the controller has heard of the nodes, as the next command of the user may be about them."""
    until = time.monotonic() + _NODES_S
    with connect(home=str(home.path)) as client:
        while not client.nodes() and time.monotonic() < until:
            time.sleep(0.2)


def start_server(
    home: Home, executor: str, listen: str, trusted_network: str, engine: Mapping[str, str] | None = None
) -> None:
    """Starts a controller on this machine if none runs; InputError if one of another kind does."""
    if not _is_served(home):
        given: dict[str, object] = {
            "executor": executor,
            "listen": listen or "127.0.0.1:0",
            "trusted_network": trusted_network or None,
        }
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]
        if engine:
            given["engine_settings"] = [f"{name}={value}" for name, value in engine.items()]
            flags += [f"--engine-option={name}={value}" for name, value in engine.items()]
        serve_in_background(home, (), given, ["serve", f"--home={home.path}", *flags])
    runs = home.read_options()
    if runs.executor != executor or (engine and dict(engine) != runs.engine_options):
        options = "".join(f" --engine-option {name}={value}" for name, value in runs.engine_options.items())
        raise InputError(
            f"the cluster in {home.path} runs with --executor {runs.executor}{options}; 'coadapt down' it first, or use another --home"
        )


def loopback_warning(home: Home) -> list[str]:
    address = url_of(home).rpartition(":")[0].partition("://")[2].strip("[]")
    if not ipaddress.ip_address(address).is_loopback:
        return []
    return [
        "The controller listens on loopback: only nodes on this machine reach it. Elsewhere give --listen."
    ]


def url_of(home: Home) -> str:
    return home.address.read_text().strip() if home.address.exists() else "URL_OF_THE_CONTROLLER"


def _script(
    home: Home, name: str, options: SlurmOptions, nodes: int, token_file: Path, offer: Sequence[str]
) -> str:
    return pilot_script(
        options,
        name=name,
        nodes=nodes,
        url=url_of(home),
        token_file=str(token_file),
        offer=offer,
        directory=str(home.path / "nodes"),
    )


def _is_served(home: Home) -> bool:
    if not home.path.exists():
        return False
    try:
        with locked(home.lock, "served"):
            return False
    except InputError:
        return home.address.exists()


def make_token(home: Home, file: Path) -> None:
    if not file.exists():
        text = new_token()
        with closing(open_store(home.store(home.read_options())).tokens()) as tokens:
            tokens.remove(_PILOTS)
            tokens.add(Token(name=_PILOTS, role="node", made_at=time.time()), token_hash(text))
        write_private(file, text.encode())


def _slurm_time(text: str) -> str:
    """Returns a time limit as Slurm writes it: 24h is 1-00:00:00; Slurm's own forms stay as they are."""
    if not text or not text[-1].isalpha():
        return text
    minutes = int(parse_duration(text) // 60)
    if minutes < 1:
        raise InputError(f"--time {text} is too short for Slurm; it must be at least a minute")
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def offer_of(gpus: str, virtual: str) -> list[str]:
    """Returns the options of ``coadapt node join`` about GPUs."""
    found = [*(["--gpus", gpus] if gpus != "auto" else []), *(["--virtual", virtual] if virtual else [])]
    return [shlex.quote(each) for each in found]
