"""PPO: four carts with poles, rollouts, advantages, several epochs of minibatches, two heads of one network."""

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn.utils import clip_grad_norm_

ITERATIONS, UPDATES, ROLLOUT, CARTS, GAMMA, LAMBDA = 2, 16, 16, 4, 0.98, 0.95


class CartPole:
    """Carts that are pushed left or right, so that their poles do not fall."""

    def __init__(self, count, seed):
        self.random = np.random.default_rng(seed)
        self.state = self.random.uniform(-0.05, 0.05, (count, 4))

    def observed(self):
        return torch.tensor(self.state, dtype=torch.float32)

    def step(self, actions):
        speed, angle, turn = self.state.T[1:]
        force, sin, cos = np.where(actions, 10.0, -10.0), np.sin(angle), np.cos(angle)
        pushed = (force + 0.05 * turn**2 * sin) / 1.1
        turned = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moved = pushed - 0.05 * turned * cos / 1.1
        self.state = self.state + 0.02 * np.stack([speed, moved, turn, turned], 1)
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.2)
        self.state[fallen] = self.random.uniform(-0.05, 0.05, (int(fallen.sum()), 4))
        return torch.from_numpy(fallen)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, states):
        x = self.body(states)
        return Categorical(logits=self.actor(x)), self.critic(x)[..., 0]


@torch.no_grad()
def rollout(model, env):
    seen = []
    for _ in range(ROLLOUT):
        state = env.observed()
        policy, value = model(state)
        action = policy.sample()
        seen.append((state, action, policy.log_prob(action), value, env.step(action.numpy())))
    states, actions, chances, values, fallen = (torch.stack(one) for one in zip(*seen, strict=True))
    following, advantage, advantages = model(env.observed())[1], torch.zeros(CARTS), []
    for at in reversed(range(ROLLOUT)):
        going_on = (~fallen[at]).float()
        surprise = 1.0 - fallen[at].float() + GAMMA * following * going_on - values[at]
        advantage, following = surprise + GAMMA * LAMBDA * going_on * advantage, values[at]
        advantages.insert(0, advantage)
    advantages = torch.stack(advantages)
    return [one.flatten(0, 1) for one in (states, actions, chances, advantages, advantages + values)]


def ppo_loss(model, states, actions, chances, advantages, returns):
    policy, values = model(states)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (policy.log_prob(actions) - chances).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    return 0.5 * (returns - values).pow(2).mean() - gain - 0.01 * policy.entropy().mean()


torch.manual_seed(0)
env = CartPole(CARTS, seed=1)
model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for iteration in range(1, ITERATIONS + 1):
    memory = rollout(model, env)
    for update in range(UPDATES):
        if update % 4 == 0:
            order = torch.randperm(ROLLOUT * CARTS).chunk(4)
        loss = ppo_loss(model, *(one[order[update % 4]] for one in memory))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    print(f"iteration {iteration}: return {memory[4].mean().item():.3f}")

torch.save(model.state_dict(), "model.pt")
