"""A tiny model in Hugging Face's Trainer, with our callback. Prints the steps it made."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from coadapt.torch.integrations.huggingface import CoadaptCallback, last_checkpoint

torch.set_num_threads(1)


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        made = torch.Generator().manual_seed(index)
        return {"x": torch.randn(4, generator=made), "labels": index % 3}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Said(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        print("step", state.global_step, flush=True)
        time.sleep(float(os.environ.get("STEP_S", "0")))  # the length of a step


arguments = TrainingArguments(
    output_dir=os.environ["COADAPT_CHECKPOINTS"],
    num_train_epochs=float(os.environ["EPOCHS"]),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    save_strategy="no",
    logging_steps=4,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model=Net(), args=arguments, train_dataset=Data(), callbacks=[Said(), CoadaptCallback(noise_budget=0.5)]
)
trainer.train(resume_from_checkpoint=last_checkpoint(arguments.output_dir))
print("done", trainer.state.global_step, flush=True)
