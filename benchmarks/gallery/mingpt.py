# expect: right
# As minGPT's Trainer: an endless sampler with replacement, next(data_iter), callbacks by iteration.
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, RandomSampler
from torch.utils.data.dataloader import DataLoader

from benchmarks.gallery_data import tokens
import coadapt.torch as coadapt  #+


class SortDataset(Dataset):
    def __init__(self):
        self.text = tokens()

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        return self.text[i : i + 6], self.text[i + 1 : i + 7]


torch.manual_seed(3)
train_dataset = SortDataset()
model = nn.Sequential(nn.Embedding(17, 12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 17)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
job = coadapt.init()  #+
sampler = RandomSampler(train_dataset, replacement=True, num_samples=int(1e10))
train_loader = DataLoader(train_dataset, sampler=sampler, shuffle=False, pin_memory=False, batch_size=16, num_workers=0)
model, optimizer, train_loader = job.prepare(model, optimizer, train_loader)  #+
model.train()
#- iter_num, data_iter = 0, iter(train_loader)
#- while iter_num < 70:
#-     x, y = next(data_iter)
for x, y in job.steps(max_steps=70):  #+
    loss = F.cross_entropy(model(x).view(-1, 17), y.reshape(-1))
    model.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    #- iter_num += 1
