"""Writes the samples that the frameworks themselves make: ``python tests/unit/prediction/make_log_samples.py``.

tqdm, Lightning, Hugging Face Trainer and TensorBoard are run here; the samples of the other formats are written after the formats by hand.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES = Path(__file__).parent / "log_samples"

TQDM = """
import time
from tqdm import tqdm
for epoch in range(1, 4):
    bar = tqdm(range(40), desc=f"Epoch {epoch}/3", ascii=True, mininterval=0, ncols=90)
    for step in bar:
        time.sleep(0.002)
        bar.set_postfix(loss=f"{1 / (step + 1):.3f}")
"""

LIGHTNING = """
import logging, torch, lightning as L
from torch.utils.data import DataLoader, TensorDataset
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        loss = ((self.layer(batch[0]) - batch[1]) ** 2).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(160, 4), torch.randn(160, 1)), batch_size=8)
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
for bar in (TQDMProgressBar(refresh_rate=5), RichProgressBar()):
    L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False, callbacks=[bar]).fit(Net(), data)
"""

HUGGING_FACE = """
import sys, torch, transformers
from transformers import Trainer, TrainingArguments
transformers.logging.set_verbosity_info()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x).squeeze(-1)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}
data = [{"x": torch.randn(4), "labels": torch.randn(())} for _ in range(64)]
args = TrainingArguments(output_dir=sys.argv[1], num_train_epochs=3, per_device_train_batch_size=8, logging_steps=4, save_strategy="no", report_to=[], use_cpu=True)
Trainer(model=Net(), args=args, train_dataset=data).train()
"""

TENSORBOARD = """
import sys
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter(sys.argv[1])
for step in range(0, 200, 10):
    writer.add_scalar("train/loss", 1 / (step + 1), step, walltime=1.7e9 + 0.5 * step)
writer.close()
"""


def run(code: str, *args: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    return done.stdout


def main() -> None:
    (SAMPLES / "tqdm.log").write_bytes(run(TQDM))
    (SAMPLES / "lightning.log").write_bytes(run(LIGHTNING))
    with tempfile.TemporaryDirectory() as folder:
        (SAMPLES / "huggingface.log").write_bytes(run(HUGGING_FACE, folder).replace(folder.encode(), b"out"))
    with tempfile.TemporaryDirectory() as folder:
        run(TENSORBOARD, folder)
        (SAMPLES / "tensorboard.tfevents").write_bytes(next(Path(folder).iterdir()).read_bytes())


if __name__ == "__main__":
    main()
