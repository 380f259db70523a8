# expect: right
# As pytorch/examples imagenet: SGD, StepLR, meters, best accuracy, a checkpoint of its own per epoch with the schedule's state.
import os
import shutil

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from benchmarks.gallery_data import images
import coadapt.torch as coadapt  #+

best_acc1 = 0


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def save_checkpoint(state, is_best):
    name = os.path.join(os.environ["GALLERY_OUT"], f"checkpoint{os.environ.get('RANK', 0)}.pth.tar")
    torch.save(state, name)
    if is_best:
        shutil.copyfile(name, name + ".best")


def validate(val_loader, model, criterion):
    losses, top1 = AverageMeter(), AverageMeter()
    model.eval()
    with torch.no_grad():
        for x, target in val_loader:
            output = model(x)
            losses.update(criterion(output, target).item(), x.size(0))
            top1.update(output.argmax(1).eq(target).double().mean().item(), x.size(0))
    return top1.avg


def main():
    global best_acc1
    torch.manual_seed(0)
    job = coadapt.init()  #+
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).double()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    train_loader = DataLoader(images(), batch_size=16, shuffle=True)
    model, optimizer, scheduler, train_loader = job.prepare(model, optimizer, scheduler, train_loader)  #+
    val_loader = DataLoader(images(64, seed=2), batch_size=32)
    #- for epoch in range(0, 6):
    for epoch in job.epochs(6):  #+
        model.train()
        for i, (x, target) in enumerate(train_loader):
            output = model(x)
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        acc1 = validate(val_loader, model, criterion)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save_checkpoint(
            {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best_acc1": best_acc1,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            },
            is_best,
        )


if __name__ == "__main__":
    main()
