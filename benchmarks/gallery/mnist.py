# expect: right
# As pytorch/examples mnist: functions train and test, Adadelta, StepLR per epoch, prints the length of the dataset.
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from benchmarks.gallery_data import images
import coadapt.torch as coadapt  #+


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(4 * 36, 4)

    def forward(self, x):
        x = F.relu(self.conv(x))
        return F.log_softmax(self.fc(self.dropout(torch.flatten(x, 1))), dim=1)


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0:
            done = batch_idx * len(data)
            print(f"epoch {epoch} [{done}/{len(train_loader.dataset)} of {len(train_loader)}] {loss.item():.6f}")


def test(model, device, test_loader):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data.to(device))
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(1).eq(target).sum().item()
    print(f"test loss {test_loss / len(test_loader.dataset):.4f}, {correct}/{len(test_loader.dataset)}")


def main():
    torch.manual_seed(1)
    #- device = torch.device("cpu")
    job = coadapt.init()  #+
    device = job.device  #+
    train_loader = DataLoader(images(), batch_size=16, shuffle=True)
    test_loader = DataLoader(images(64, seed=2), batch_size=64)
    model = Net().double().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    model, optimizer, scheduler, train_loader = job.prepare(model, optimizer, scheduler, train_loader)  #+
    #- for epoch in range(1, 6 + 1):
    for epoch in job.epochs(6):  #+
        train(model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
