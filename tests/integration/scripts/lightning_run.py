"""A tiny model in Lightning's Trainer, with our callback. Prints the steps it made."""

from __future__ import annotations

import logging
import os
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coadapt.torch.integrations.lightning import CoadaptCallback

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def training_step(self, batch: Any, index: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class Said(pl.Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        print("step", trainer.global_step, flush=True)
        time.sleep(float(os.environ.get("STEP_S", "0")))  # the length of a step


torch.manual_seed(1)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
callback = CoadaptCallback(noise_budget=0.5)
trainer = pl.Trainer(
    max_epochs=int(os.environ["EPOCHS"]),
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp" if os.environ["WORLD_SIZE"] != "1" else "auto",
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[Said(), callback],
)
trainer.fit(Net(), DataLoader(data, batch_size=4), ckpt_path=callback.last_checkpoint())
print("done", trainer.global_step, flush=True)
