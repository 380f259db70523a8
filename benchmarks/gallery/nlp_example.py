# expect: right
# As accelerate's nlp_example: padding in the collate function, a warm-up and linear schedule, outputs as a dict, **batch.
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from benchmarks.gallery_data import sentences
import coadapt.torch as coadapt  #+


def collate_fn(examples):
    longest = max(len(e["ids"]) for e in examples)
    ids = torch.tensor([e["ids"] + [0] * (longest - len(e["ids"])) for e in examples])
    return {"input_ids": ids, "attention_mask": ids > 0, "labels": torch.tensor([e["label"] for e in examples])}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 12)
        self.out = nn.Linear(12, 2)

    def forward(self, input_ids, attention_mask, labels):
        mask = attention_mask.unsqueeze(-1).double()
        hidden = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.out(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


torch.manual_seed(42)
num_epochs, batch_size = 5, 16
train = sentences()
model = Classifier().double()
optimizer = AdamW(model.parameters(), lr=2e-2)
job = coadapt.init()  #+
train_dataloader = DataLoader(train, shuffle=True, collate_fn=collate_fn, batch_size=batch_size, drop_last=True)
total = len(train_dataloader) * num_epochs
lr_scheduler = LambdaLR(optimizer, lambda s: min(s / 10, max(0.0, (total - s) / (total - 10))))
model, optimizer, lr_scheduler, train_dataloader = job.prepare(model, optimizer, lr_scheduler, train_dataloader)  #+
#- for epoch in range(num_epochs):
for epoch in job.epochs(num_epochs):  #+
    model.train()
    for step, batch in enumerate(train_dataloader):
        outputs = model(**batch)
        loss = outputs["loss"]
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
