"""Q-learning: an environment, a replay buffer, a target network, fewer random actions over time."""

import copy
import random
from collections import deque

import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.utils.data import DataLoader

STEPS, BATCH, GAMMA = 10, 16, 0.95


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


class ReplayBuffer:
    def __init__(self, size):
        self.held = deque(maxlen=size)

    def add(self, *transition):
        self.held.append(transition)

    def sample(self, count):
        states, actions, rewards, following, ends = zip(*random.sample(self.held, count), strict=True)
        numbers = (torch.tensor(actions), torch.tensor(rewards), torch.tensor(ends).float())
        return torch.stack(states), torch.stack(following), *numbers


class QLearning:
    def model(self, cfg):
        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
        self.env, self.buffer = Walk(seed=1), ReplayBuffer(100)
        self.target = copy.deepcopy(model)
        self.epsilon, self.reward_sum = 1.0, 0.0
        self.state = self.env.reset()
        for _ in range(BATCH):
            self.act(random.randrange(2))
        return model

    def act(self, action):
        following, reward, ended = self.env.step(action)
        self.buffer.add(self.state, action, reward, following, ended)
        self.state = self.env.reset() if ended else following
        return reward

    def train_data(self, cfg):
        return DataLoader(range(STEPS), batch_size=None)

    def loss(self, model, batch):
        with torch.no_grad():
            action = random.randrange(2) if random.random() < self.epsilon else model(self.state).argmax().item()
        self.reward_sum += self.act(action)
        states, followings, actions, rewards, ends = self.buffer.sample(BATCH)
        with torch.no_grad():
            wanted = rewards + GAMMA * (1 - ends) * self.target(followings).max(1).values
        return smooth_l1_loss(model(states).gather(1, actions[:, None])[:, 0], wanted)

    def on_step_end(self, model, step):
        self.epsilon = max(0.1, self.epsilon * 0.97)
        if step % STEPS == 0:
            self.target.load_state_dict(model.state_dict())

    def state_dict(self):
        kept = {name: getattr(self, name) for name in ("epsilon", "reward_sum", "state")}
        world = {"place": self.env.place, "random": self.env.random.getstate(), "held": list(self.buffer.held)}
        return {**kept, **world, "target": self.target.state_dict()}

    def load_state_dict(self, saved):
        self.env.random.setstate(saved.pop("random"))
        self.env.place = saved.pop("place")
        self.buffer.held = deque(saved.pop("held"), maxlen=100)
        self.target.load_state_dict(saved.pop("target"))
        vars(self).update(saved)
