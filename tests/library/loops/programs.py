"""Programs with a loop of their own, which the tests interrupt, and a way to kill them."""

from __future__ import annotations

import importlib
import os
import signal

import torch
from torch.nn.functional import cross_entropy, softplus
from torch.utils.data import DataLoader

from tests.library.small import CONFIG, EPOCHS, bits, data, network
from tests.trainer.tasks.updating import NOISE, WIDTH, networks
from tolariad import Tolaria, failpoints


class Counter:
    """Something of the user's that changes: a count of batches, and an average of the weights."""

    def __init__(self, model):
        self.count, self.average = 0, {name: p.detach().clone() for name, p in model.named_parameters()}

    def look(self, model):
        self.count += 1
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                self.average[name].lerp_(parameter, 0.1)

    def state_dict(self):
        return {"count": self.count, "average": self.average}

    def load_state_dict(self, state):
        self.count = state["count"]
        for name, value in state["average"].items():
            self.average[name].copy_(value)

    def bits(self):
        return self.count, {name: value.numpy().tobytes() for name, value in self.average.items()}


def configured(**options):
    return {"tolaria": {**CONFIG["tolaria"], **options}}


def loader(**options):
    return DataLoader(options.pop("of", data()), batch_size=12, shuffle=True, **options)


class Loop:
    """One start of a program with a loop of its own. `after` is called after each step. `draws`: validations draw."""

    def __init__(self, run_dir, after=lambda loop: None, *, counted=True, draws=True, **options):
        self.model, self.after, self.draws = network(), after, draws
        self.tolaria = Tolaria(configured(**options), run_dir=run_dir)
        self.run = self.tolaria.run(self.model, None, loader())
        self.counter = Counter(self.model)
        if counted:
            self.run.keep("counter", self.counter)
        self.step, self.seen, self.counted, self.applied = 0, [], [], []

    def go(self):
        for epoch in self.run.epochs(EPOCHS):
            self.seen.append(epoch)
            for inputs, targets in self.run.batches():
                self.applied.append(self.run.step(cross_entropy(self.model(inputs), targets)))
                self.counter.look(self.model)
                self.step += 1
                self.after(self)
            self.model.eval()
            with torch.no_grad():
                accuracy = (self.model(data().tensors[0]).argmax(1) == data().tensors[1]).float().mean()
            self.model.train()
            if self.draws:
                torch.rand(3)
                self.counter.count += 1
            self.counted.append(self.run.validated(accuracy=accuracy))
        return self

    @property
    def bits(self):
        return bits(self.model), self.counter.bits()


def adversaries(run_dir, after=lambda step: None, *, running=None):
    """Two networks against each other, with two updates in each step. Return the model and the run.

    `after` is called after each update: with 0.5 after the first one of the first step. `running` gets the run.
    """
    torch.manual_seed(2)
    model = networks()
    parts = {
        "judge": torch.optim.Adam(model["judge"].parameters(), lr=4e-3),
        "maker": torch.optim.Adam(model["maker"].parameters(), lr=1e-3),
    }
    real = torch.randn(48, WIDTH)
    tolaria = Tolaria(configured(learning_rate={}), run_dir=run_dir)
    if running is not None:
        running.append(tolaria)
    run = tolaria.run(model, parts, DataLoader(torch.utils.data.TensorDataset(real), 12, shuffle=True))
    step = 0
    for _ in run.epochs(EPOCHS):
        for (batch,) in run.batches():
            made = model["maker"](torch.randn(len(batch), NOISE))
            told_apart = softplus(-model["judge"](batch)).mean() + softplus(model["judge"](made.detach())).mean()
            run.update("judge", told_apart)
            after((step := step + 1) - 0.5)
            run.update("maker", softplus(-model["judge"](made)).mean())
            run.stepped(loss=told_apart)
            after(step)
    return model, tolaria


def killed(program, point=""):
    """Run a program in a forked child that is killed, by itself or at a failpoint."""
    child = os.fork()
    if child == 0:
        try:
            os.environ[failpoints.VARIABLE] = point
            importlib.reload(failpoints)
            program()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die():
    """Kill this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
