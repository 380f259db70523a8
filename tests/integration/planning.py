"""What tests of ``coadapt plan`` ask about: made-up past runs, and a script that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from coadapt.testing.planners import BATCHES, REPLICAS, metric_after, pass_s

TRAIN = """
import json, sys, time
batch, epochs = int(sys.argv[1]), int(sys.argv[2])
if batch == 64:
    print("CUDA out of memory"); sys.exit(1)
for epoch in range(1, epochs + 1):
    print("COADAPT " + json.dumps({"epoch": epoch, "epoch_s": 1 + 100 / batch, "val_acc": 1 - 0.5 ** epoch}), flush=True)
"""


ASK = ["plan", "--samples", "runs.csv", "--gpus", "t4:1..8", "--gpus-per-node", "4"]
PROFILE = ["plan", "--gpus", "1", "--batch", "32..128"]


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with past runs, a script that trains and prices; and we are in it."""
    monkeypatch.chdir(tmp_path)
    lines = ["batch,workers,epochs,epoch_s,val_acc"]
    for batch in BATCHES:
        for k in REPLICAS:
            for passes in (4, 10, 20, 30):
                lines.append(f"{batch},{k},{passes},{pass_s(batch, k):.3f},{metric_after(batch, passes):.5f}")
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "prices.yaml").write_text("t4: 0.5\n")
    return tmp_path
