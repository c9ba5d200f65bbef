"""The digits CNN on one fold of five, as a task of its own: three folds train, one validates, one is never seen.

`task_options`: `model` is `cnn`; `seed` and `fold` of the split; `asks`: the control socket of the run, if it waits for
analyses. An epoch of the digits takes a fraction of a second, and an analysis takes longer than several of them. So
after an epoch in which the schedule prunes, the training pauses until the analysis has ended, as if an epoch took
minutes. The pause is outside of any step, and changes no number.
"""

from __future__ import annotations

import json
import socket
import time

import torch
from torch import nn

from tolariad.core.calc.settings.model import Settings
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.tasks.digits import Digits, read_digits

FOLDS = 5
_WAIT_S = 60.0
_LOOK_S = 0.02


def parts(seed: int, fold: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the digits to train, to validate and to test with. Over the five folds each digit is tested once."""
    images, labels = read_digits()
    dealt = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tensor_split(FOLDS)
    rows = {
        "train": torch.cat([dealt[(fold + further) % FOLDS] for further in range(2, FOLDS)]),
        "validate": dealt[(fold + 1) % FOLDS],
        "test": dealt[fold],
    }
    return {name: (images[of], labels[of]) for name, of in rows.items()}


def network() -> nn.Module:
    """Return the CNN of `digits`."""
    return Digits().model(Settings(task="digits", task_options={"model": "cnn"}))


class Folded(Digits):
    """Digits with other splits: network, loss, augmentation and evaluation are those of the built-in task."""

    def __init__(self) -> None:
        super().__init__()
        self._asks, self._interval, self._first, self._since = "", 0, 0, 0

    def model(self, cfg) -> nn.Module:
        """Return the network."""
        self._asks = cfg.task_options.get("asks", "")
        self._interval, self._first = cfg.pruning_checkpoint_interval, cfg.pruning_phase_transition_epoch
        return super().model(cfg)

    def train_data(self, cfg):
        """Return three folds."""
        return _parts(cfg)["train"]

    def val_data(self, cfg):
        """Return the fold after the one to test with."""
        return _parts(cfg)["validate"]

    def on_epoch_end(self, model, epoch, metrics):
        """Note that a checkpoint of this epoch will be analysed."""
        is_due = epoch > self._first and epoch % self._interval == 0
        self._since = epoch if self._asks and is_due else 0

    def on_step_end(self, model, step):
        """Slow down until the checkpoint is committed, which needs steps, and wait until its analysis has ended."""
        if self._since and _is_over(self._asks, self._since):
            self._since = 0


def _parts(cfg):
    options = cfg.task_options
    if not {"seed", "fold"} <= options.keys():
        raise SetupRefused("task_options need `seed` and `fold`")
    return parts(options["seed"], options["fold"])


def _is_over(path: str, epoch: int) -> bool:
    """Return whether the cycle of this epoch has ended, or none will come. Wait while one is under way."""
    until = time.monotonic() + _WAIT_S
    while (table := _asked(path))["analyzing"] is not None:
        if time.monotonic() > until:
            raise TimeoutError(f"no analysis ended within {_WAIT_S:g} s: {table}")
        time.sleep(_LOOK_S)
    found = table["found"]
    if (found is not None and found["epoch"] >= epoch) or table["window"] is not None or table["phase"] == "DISABLED":
        return True
    time.sleep(_LOOK_S)
    return False


def _asked(path: str) -> dict:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_WAIT_S)
        sock.connect(path)
        sock.sendall(b'{"method":"io.esper.tolaria.PruneStatus"}\0')
        answer = b""
        while not answer.endswith(b"\0"):
            piece = sock.recv(65536)
            if not piece:
                raise ConnectionError("the daemon closed the connection")
            answer += piece
    reply = json.loads(answer[:-1])["parameters"]
    return reply.get("pruning", reply)
