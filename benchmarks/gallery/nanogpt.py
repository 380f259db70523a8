# expect: right
# As nanoGPT's train.py: no Dataset and no epochs, the rate by the iteration, AdamW groups, clipping, a disabled GradScaler.
import math

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gallery_data import tokens
import coadapt.torch as coadapt  #+

block_size, batch_size, max_iters, warmup_iters, learning_rate, min_lr = 8, 12, 80, 10, 1e-2, 1e-3
text = tokens()


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(17, 16), nn.Embedding(block_size, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 17, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1), dtype=x.dtype)
        logits = self.head(self.block(x, src_mask=mask))
        return logits, F.cross_entropy(logits.view(-1, 17), targets.view(-1))


#- def get_batch():
#-     ix = torch.randint(len(text) - block_size - 1, (batch_size,))
#-     return torch.stack([text[i : i + block_size] for i in ix]), torch.stack([text[i + 1 : i + 1 + block_size] for i in ix])
class Windows(torch.utils.data.Dataset):  #+
    def __len__(self):  #+
        return len(text) - block_size - 1  #+
    def __getitem__(self, i):  #+
        return text[i : i + block_size], text[i + 1 : i + 1 + block_size]  #+


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


torch.manual_seed(1337)
model = GPT().double()
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=learning_rate)
scaler = torch.amp.GradScaler("cpu", enabled=False)
job = coadapt.init()  #+
model, optimizer, scaler = job.prepare(model, optimizer, scaler)  #+
loader = job.loader(Windows(), batch_size=batch_size)  #+
#- for iter_num in range(max_iters):
#-     X, Y = get_batch()
for X, Y in job.steps(max_steps=max_iters):  #+
    iter_num = job.step  #+
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    logits, loss = model(X, Y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 20 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, lr {lr:.5f}")
