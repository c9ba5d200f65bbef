"""Q-learning: an environment, a replay buffer, a target network, fewer random actions over time."""

import copy
import random
from collections import deque

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.utils.data import DataLoader

from tolariad import Tolaria

ITERATIONS, STEPS, BATCH, GAMMA = 4, 10, 16, 0.95


class Walk:
    """Six places in a row; the reward is at the right end, and the floor slips now and then."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def reset(self):
        self.place = self.random.randrange(4)
        return self.observed()

    def observed(self):
        return torch.nn.functional.one_hot(torch.tensor(self.place), 6).float()

    def step(self, action):
        slips = self.random.random() < 0.1
        self.place = max(0, self.place + (1 if (action == 1) != slips else -1))
        return self.observed(), float(self.place == 5), self.place == 5

    def state_dict(self):
        return {"place": self.place, "random": self.random.getstate()}

    def load_state_dict(self, state):
        self.place = state["place"]
        self.random.setstate(state["random"])


class ReplayBuffer:
    def __init__(self, size):
        self.held = deque(maxlen=size)

    def add(self, *transition):
        self.held.append(transition)

    def sample(self, count):
        states, actions, rewards, following, ends = zip(*random.sample(self.held, count), strict=True)
        numbers = (torch.tensor(actions), torch.tensor(rewards), torch.tensor(ends).float())
        return torch.stack(states), torch.stack(following), *numbers

    def state_dict(self):
        return {"held": list(self.held)}

    def load_state_dict(self, state):
        self.held.clear()
        self.held.extend(state["held"])


random.seed(0)
torch.manual_seed(0)
env, buffer = Walk(seed=1), ReplayBuffer(100)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(model)
mine = {"epsilon": 1.0, "reward_sum": 0.0}

state = env.reset()
for _ in range(BATCH):
    action = random.randrange(2)
    following, reward, ended = env.step(action)
    buffer.add(state, action, reward, following, ended)
    state = env.reset() if ended else following
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
config = {"rng_seed": 0, "checkpoint_interval_epochs": 1}
run = Tolaria({"tolaria": config}, run_dir="runs/reinforcement").run(
    model, optimizer, DataLoader(range(STEPS), batch_size=None)
)
for name, kept in {"env": env, "buffer": buffer, "target": target, "mine": mine}.items():
    run.keep(name, kept)

for iteration in run.epochs(ITERATIONS):
    for _ in run.batches():
        state = env.observed()
        with torch.no_grad():
            action = random.randrange(2) if random.random() < mine["epsilon"] else model(state).argmax().item()
        following, reward, ended = env.step(action)
        buffer.add(state, action, reward, following, ended)
        state = env.reset() if ended else following
        mine["reward_sum"] += reward
        states, followings, actions, rewards, ends = buffer.sample(BATCH)
        with torch.no_grad():
            wanted = rewards + GAMMA * (1 - ends) * target(followings).max(1).values
        loss = smooth_l1_loss(model(states).gather(1, actions[:, None])[:, 0], wanted)
        run.step(loss)
        mine["epsilon"] = max(0.1, mine["epsilon"] * 0.97)
    target.load_state_dict(model.state_dict())
    print(f"iteration {iteration}: reward {mine['reward_sum']:.0f}, epsilon {mine['epsilon']:.2f}")

torch.save(model.state_dict(), "model.pt")
