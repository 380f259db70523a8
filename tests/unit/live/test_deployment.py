"""Shipped files: the unit is one that systemd reads, and the alerts name metrics that are exported."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coadapt.errors import InputError
from coadapt.live import alert_rules, systemd_unit
from coadapt.model.snapshot import ShownState
from tests.unit.server.served import Served

GRAFANA = Path(__file__).parents[3] / "docs" / "grafana.json"


def exported(path: Path) -> set[str]:
    """Names of all time series at ``/metrics``."""
    served = Served(path)
    with served.client() as client:
        client.get("ada", "/v1/me")
        page = client.get("ada", "/metrics").text
    served.close()
    found = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    return found | {family.name for family in text_string_to_metric_families(page)}


def test_alerts_and_dashboard_name_metrics_that_are_exported(tmp_path: Path) -> None:
    known = exported(tmp_path)
    for text in (alert_rules(), GRAFANA.read_text()):
        used = set(re.findall(r"\bcoadapt_\w+", text))
        assert len(used) > 5
        assert used - known == set()


def test_alerts_are_complete_and_ask_for_states_that_there_are() -> None:
    rules = yaml.safe_load(alert_rules())
    alerts = [rule for each in rules["groups"] for rule in each["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 8
    for rule in alerts:
        assert {"alert", "expr", "labels", "annotations"} <= set(rule) <= {
            "alert", "expr", "for", "labels", "annotations",
        }  # fmt: skip
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
    states = {state.lower() for state in ShownState}
    for found in re.findall(r'state=~"([a-z|]+)"', alert_rules()):
        assert set(found.split("|")) <= states
    assert json.loads(GRAFANA.read_text())


@pytest.mark.parametrize("standby", [False, True])
def test_unit_can_be_read(standby: bool) -> None:
    text = systemd_unit(Path("/var/lib/coadapt"), user="gpus", standby=standby)
    assert "@" not in text
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    service = dict(unit["Service"])
    assert service["User"] == "gpus"
    # jobs must survive a restart of the unit
    assert service["KillMode"] == "process"
    ending = "serve --home /var/lib/coadapt" + (" --standby" if standby else "")
    assert service["ExecStart"].endswith(ending)
    assert Path(service["ExecStart"].split()[0]).is_file()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_unit_passes_the_check_of_systemd(tmp_path: Path) -> None:
    file = tmp_path / "coadapt.service"
    file.write_text(systemd_unit(Path("/var/lib/coadapt"), user="root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    mine = [line for line in done.stderr.splitlines() if "coadapt.service" in line]
    assert mine == []


@pytest.mark.parametrize(
    ("home", "user", "said"),
    [
        ("/var/lib/my cluster", "coadapt", "reads otherwise"),
        ("/var/lib/100%", "coadapt", "reads otherwise"),
        ('/var/"x"', "coadapt", "reads otherwise"),
        ("/var/x\nExecStart=/bin/sh", "coadapt", "reads otherwise"),
        ("/var/lib/coadapt", "a b", "not the name of a user"),
        ("/var/lib/coadapt", "root\nExecStart=/bin/sh", "not the name of a user"),
        ("/var/lib/coadapt", "", "not the name of a user"),
    ],
)
def test_what_systemd_would_misread_is_refused_in_one_line(home: str, user: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        systemd_unit(Path(home), user=user)
    assert "\n" not in str(error.value)
