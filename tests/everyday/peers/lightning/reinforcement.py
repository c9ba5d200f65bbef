"""Q-learning: an environment, a replay buffer, a target network, fewer random actions over time."""

import copy
import random
from collections import deque

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.utils.data import DataLoader

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

state = env.reset()
for _ in range(BATCH):
    action = random.randrange(2)
    following, reward, ended = env.step(action)
    buffer.add(state, action, reward, following, ended)
    state = env.reset() if ended else following


class QLearning(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.target = model, target
        self.epsilon, self.reward_sum = 1.0, 0.0

    def training_step(self, batch, _):
        state = env.observed()
        with torch.no_grad():
            action = random.randrange(2) if random.random() < self.epsilon else model(state).argmax().item()
        following, reward, ended = env.step(action)
        buffer.add(state, action, reward, following, ended)
        if ended:
            env.reset()
        self.reward_sum += reward
        states, followings, actions, rewards, ends = buffer.sample(BATCH)
        with torch.no_grad():
            wanted = rewards + GAMMA * (1 - ends) * target(followings).max(1).values
        return smooth_l1_loss(model(states).gather(1, actions[:, None])[:, 0], wanted)

    def on_train_batch_end(self, outputs, batch, number):
        self.epsilon = max(0.1, self.epsilon * 0.97)

    def on_train_epoch_end(self):
        target.load_state_dict(model.state_dict())
        self.log_dict({"reward": self.reward_sum, "epsilon": self.epsilon})

    def configure_optimizers(self):
        return torch.optim.Adam(model.parameters(), lr=3e-3)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = [env.state_dict(), buffer.state_dict(), self.epsilon, self.reward_sum]

    def on_load_checkpoint(self, checkpoint):
        world, held, self.epsilon, self.reward_sum = checkpoint["mine"]
        env.load_state_dict(world)
        buffer.load_state_dict(held)


checkpoints = ModelCheckpoint("checkpoints", save_last=True)
trainer = lightning.Trainer(max_epochs=ITERATIONS, callbacks=[checkpoints])
trainer.fit(QLearning(), DataLoader(range(STEPS), batch_size=None), ckpt_path="last")

torch.save(model.state_dict(), "model.pt")
