"""``coadapt up``: an allocation of an engine becomes the cluster. An agent runs on each of its nodes until its time limit.

The controller runs on this machine, which the nodes must reach; no administrator's rights are needed.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from coadapt.errors import InputError
from coadapt.executors import SlurmOptions, pilot_script, slurm_options, submit_script
from coadapt.live.serve_process import serve_in_background
from coadapt.live.supervisor import locked
from coadapt.store import open_store
from coadapt.store.home import Home, write_private
from coadapt.store.token_table import Token, new_token, token_hash
from coadapt.units import parse_duration

#: Name of the token of pilots.
_PILOTS = "pilots"


def up_slurm(
    home: Home,
    *,
    nodes: int,
    listen: str = "",
    trusted_network: str = "",
    gpus: str = "auto",
    virtual: str = "",
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
        dry_run: only returns the script.
        slurm: where and for whom, see ``SlurmOptions``; ``time`` also as 24h.
    """
    options, offer = (
        slurm_options({**slurm, "time": _slurm_time(slurm.get("time", ""))}),
        offer_of(gpus, virtual),
    )
    token_file = home.path / "pilot_token"
    if dry_run:
        url = home.address.read_text().strip() if home.address.exists() else "URL_OF_THE_CONTROLLER"
        return [_script(home, options, nodes, url, token_file, offer)]
    if not _is_served(home):
        given = {
            "executor": "joined",
            "listen": listen or "127.0.0.1:0",
            "trusted_network": trusted_network or None,
        }
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]
        serve_in_background(home, (), given, ["serve", f"--home={home.path}", *flags])
    if home.read_options().executor != "joined":
        raise InputError(
            f"the cluster in {home.path} runs with --executor {home.read_options().executor}; 'coadapt down' it first, or use another --home"
        )
    _make_token(home, token_file)
    (home.path / "nodes").mkdir(mode=0o700, exist_ok=True)
    url = home.address.read_text().strip()
    job = submit_script(_script(home, options, nodes, url, token_file, offer), os.environ)
    lines = [
        f"Submitted batch job {job} of {nodes} node{'s' * (nodes > 1)}; 'coadapt nodes' lists them when Slurm has granted it."
    ]
    if ipaddress.ip_address(url.rpartition(":")[0].partition("://")[2].strip("[]")).is_loopback:
        lines.append(
            "The controller listens on loopback: only nodes on this machine reach it. Elsewhere give --listen."
        )
    return [*lines, f"To give the nodes back: scancel {job}. To stop everything: coadapt down"]


def _script(
    home: Home, options: SlurmOptions, nodes: int, url: str, token_file: Path, offer: Sequence[str]
) -> str:
    return pilot_script(
        options,
        nodes=nodes,
        url=url,
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


def _make_token(home: Home, file: Path) -> None:
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
