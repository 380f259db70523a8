# expect: right
# Reinforcement learning by REINFORCE with a value head: episodes are simulated with the model, the loss has two terms.
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gallery_data import vectors
import coadapt.torch as coadapt  #+


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine, self.action, self.value = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, states):
        x = torch.tanh(self.affine(states))
        return F.log_softmax(self.action(x), -1), self.value(x).squeeze(-1)


torch.manual_seed(543)
states, best_actions = vectors()[:]
draws = torch.rand(len(states), 1, generator=torch.Generator().manual_seed(5)).double()
model = Policy().double()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
job = coadapt.init()  #+
episodes = DataLoader(TensorDataset(states, best_actions, draws), batch_size=16, shuffle=True)
model, optimizer, episodes = job.prepare(model, optimizer, episodes)  #+
running_reward = 0.0
#- for i_episode in range(6):
for i_episode in job.epochs(6):  #+
    for state, right, draw in episodes:
        log_probs, values = model(state)
        actions = (log_probs.exp().detach().cumsum(-1) < draw).sum(-1).clamp(max=2)
        rewards = actions.eq(right).double()
        advantage = rewards - values.detach()
        chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
        loss = -(chosen * advantage).mean() + F.smooth_l1_loss(values, rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running_reward = 0.05 * rewards.mean().item() + 0.95 * running_reward
    print(f"episode {i_episode}: running reward {running_reward:.2f}")
