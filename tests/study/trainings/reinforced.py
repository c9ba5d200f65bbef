"""Reinforcement learning in a pole-balancing world of our own: deep Q-learning and policy gradients."""

from __future__ import annotations

import copy
import math

import torch
from torch.nn import functional

from tests.study.trainings.base import Run, mlp, stepped

_WORLDS, _LONGEST = 16, 200


class Poles:
    """Sixteen carts with a pole each, after Barto, Sutton and Anderson (1983); state (16, 4), actions 0 and 1."""

    def __init__(self) -> None:
        self.state = 0.05 * torch.randn(_WORLDS, 4)
        self.age = torch.zeros(_WORLDS)
        self.lived: list[float] = []

    def act(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The next states, and which poles fell (or stood long enough) and begin anew after that."""
        x, speed, angle, turn = self.state.unbind(1)
        force = 20.0 * action - 10.0
        pull = (force + 0.05 * turn.square() * angle.sin()) / 1.1
        twist = (9.8 * angle.sin() - angle.cos() * pull) / (0.5 * (4.0 / 3.0 - 0.1 * angle.cos().square() / 1.1))
        push = pull - 0.05 * twist * angle.cos() / 1.1
        found = torch.stack((x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * twist), 1)
        self.age += 1
        over = (found[:, 0].abs() > 2.4) | (found[:, 2].abs() > 0.21) | (self.age >= _LONGEST)
        self.lived += self.age[over].tolist()
        self.age[over] = 0
        self.state = torch.where(over[:, None], 0.05 * torch.randn(_WORLDS, 4), found)
        return found, over

    def typical(self) -> float:
        """How long the last fifty poles stood."""
        last = self.lived[-50:]
        return sum(last) / len(last) if last else float(_LONGEST)


def q_learning(
    seed: int, *, steps: int = 2500, rate: float = 1e-3, every: int = 200, error: str = "smooth", discount: float = 0.98
) -> Run:
    """Deep Q-learning: errors grow as values are learnt, and jump whenever the target network is replaced."""
    torch.manual_seed(seed)
    worlds, model = Poles(), mlp(4, 64, 64, 2)
    target, optimizer = copy.deepcopy(model), torch.optim.Adam(model.parameters(), lr=rate)
    size = 10_000
    states, nexts = torch.zeros(size, 4), torch.zeros(size, 4)
    actions, fell = torch.zeros(size, dtype=torch.int64), torch.zeros(size)
    filled = 0
    for step in range(-30, steps):
        state = worlds.state
        with torch.no_grad():
            best = model(state).argmax(1)
        eager = max(0.05, 1.0 - max(0, step) / 800)
        action = torch.where(torch.rand(_WORLDS) < eager, torch.randint(2, (_WORLDS,)), best)
        found, over = worlds.act(action)
        at = torch.arange(filled, filled + _WORLDS) % size
        states[at], nexts[at], actions[at], fell[at] = state, found, action, over.float()
        filled += _WORLDS
        if step < 0:
            continue
        if step % every == 0:
            target.load_state_dict(model.state_dict())
        at = torch.randint(min(filled, size), (64,))
        with torch.no_grad():
            value = 1.0 - fell[at] + discount * (1.0 - fell[at]) * target(nexts[at]).amax(1)
        guess = model(states[at]).gather(1, actions[at, None])[:, 0]
        loss = functional.smooth_l1_loss(guess, value) if error == "smooth" else functional.mse_loss(guess, value)
        yield from stepped(loss, optimizer, clip=10.0)
    return worlds.typical()


def policy_gradient(seed: int, *, steps: int = 500, rate: float = 3e-3, entropy: float = 0.01) -> Run:
    """Advantage actor-critic over eight steps of each world: the loss has either sign and says little."""
    torch.manual_seed(seed)
    worlds, actor, critic = Poles(), mlp(4, 64, 2), mlp(4, 64, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=rate)
    for _ in range(steps):
        logs, values, alive, entropies = [], [], [], []
        for _ in range(8):
            state = worlds.state
            chosen = torch.distributions.Categorical(logits=actor(state))
            action = chosen.sample()
            _, over = worlds.act(action)
            logs.append(chosen.log_prob(action))
            entropies.append(chosen.entropy())
            values.append(critic(state)[:, 0])
            alive.append(1.0 - over.float())
        back = critic(worlds.state)[:, 0].detach()
        returns = []
        for lived in reversed(alive):
            back = 0.1 * lived + 0.98 * lived * back
            returns.append(back)
        gain = torch.stack(returns[::-1]) - torch.stack(values)
        loss = -(gain.detach() * torch.stack(logs)).mean() + 0.5 * gain.square().mean()
        yield from stepped(loss - entropy * torch.stack(entropies).mean(), optimizer, clip=0.5)
    return worlds.typical() if worlds.lived else math.nan
