"""Exact sums beside each other thing that training does: one hash for all numbers of ranks.

What they are compared with at last is a plain loop of torch.
"""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.library.inside import ordered
from tests.library.ranks.groups import BATCH, start
from tests.library.ranks.test_exact import LEAVES, Exact, alone, outcome
from tests.library.small import bits, data
from tests.recorded import of, sound
from tests.waiting import wait_for
from tolariad.core import messages as m

# 43 batches: the last step of an epoch has one leaf.
STEPS_PER_EPOCH = 8


class With(Exact):
    """A program with something besides: a folder, and what is set of it."""

    # Whether the loop gives the metrics of its validation itself.
    validates = True
    order = staticmethod(lambda program, step: None)

    def __init__(self, folder, **options):
        super().__init__(folder / "run", **options)
        self.before = self._order

    def _order(self, _, rank, step):
        if rank == 0:
            self.order(self, step)

    def train(self, run, rank, model, sampler):
        """Be the loop."""
        for epoch in run.epochs(self.epochs):
            for batch in run.batches():
                self.step_of(run, batch, epoch, rank, model)
            if self.validates:
                run.validated(loss=1.0 / epoch)


class Clips:
    """A task that clips."""

    def clip_gradients(self, model):
        """Clip."""
        return nn.utils.clip_grad_norm_(model.parameters(), 0.3)

    def evaluate(self, model, batch):
        """Return the metrics of a batch of the validation."""
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1])}


class Experts(nn.Module):
    """The rows say which of its halves a pass uses, so a leaf may have no gradient for a parameter."""

    def __init__(self):
        super().__init__()
        self.halves = nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4)])
        self.never = nn.Linear(2, 2)

    def forward(self, rows):
        """Use one half."""
        return self.halves[int(rows.sum() > 0)](rows)


def experts():
    torch.manual_seed(3)
    return Experts()


def plain():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))


def clipped(program):
    program.more = {"task": Clips()}


def validated(program):
    program.validates, program.more = False, {"val_loader": DataLoader(data(24), 8), "task": Clips()}


def half_used(program):
    program.model = experts


def of_odd_rows(program):
    """The last leaf of an epoch has three rows."""
    program.model, program.samples = plain, 43 * BATCH + 3


def not_finite(program):
    """The loss of one leaf is no number, so all skip the step."""
    program.factor = lambda rank, epoch, batch: float("nan") if (epoch, batch) == (1, 14) else 1.0


def in_quarantine(program):
    """Batches of the second epoch, ordered in the first one."""
    batches = m.Batches(epoch=2, first=14, last=15)

    def order(program, step):
        if step == 3:
            assert ordered(program.tolaria, m.QuarantineAdd(batches=batches))

    program.order = order


def longer(program):
    """A later end, ordered in the first epoch."""

    def order(program, step):
        if step == 3:
            assert ordered(program.tolaria, m.Extend(steps=2 * STEPS_PER_EPOCH + 3))

    program.order = order


def counting_tokens(program):
    """Each leaf has others; the run ends in the second epoch."""

    def step_of(run, batch, epoch, rank, model, *_):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(model(inputs), targets)
        run.step(loss, tokens=1 + run.batch % 5, loudness=loss.detach() * 2)

    program.step_of = step_of


CASES = {
    "tokens": (counting_tokens, {"stop": {"tokens": 43 * 3 + 40}}),
    "clipping": (clipped, {}),
    "a moving average": (lambda _: None, {"ema": {"decay": 0.9}}),
    "schedule by step": (lambda _: None, {"learning_rate": {"base_lr": 0.01, "policy": "cosine", "warmup_steps": 4}}),
    "validation on each rank": (validated, {}),
    "validation within an epoch": (validated, {"validate": {"every_steps": 3}}),
    "bf16": (lambda _: None, {"precision": "bf16"}),
    "parameters that a leaf does not use": (half_used, {}),
    "a last batch of fewer rows": (of_odd_rows, {}),
    "a loss that is not finite": (not_finite, {}),
    "quarantine": (in_quarantine, {}),
    "another end": (longer, {}),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_ranks_has_one_hash(tmp_path, name):
    """Four do not divide the six leaves."""
    settle, options = CASES[name]
    found = {}
    for ranks in (1, 3, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        program = With(folder, **options)
        settle(program)
        each = start(ranks, program, folder)
        assert all("error" not in one for one in each if one is not None), each
        found[ranks] = {outcome(one, program.run_dir) for one in each}

    assert len(found[1]) == 1
    assert all(one == found[1] for one in found.values()), found


@pytest.mark.torture
def test_a_rollback_ends_with_one_hash(tmp_path):
    """The steps that are given up may be more or fewer: the state at the end is the same."""
    found = []
    for ranks in (1, 2, 3):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        program, left = With(folder), [1]

        def order(program, step, left=left):
            if step == STEPS_PER_EPOCH + 4 and left:
                left.pop()
                wait_for(lambda: ordered(program.tolaria, m.Rollback(epoch=1)), "the rollback")

        program.order = order
        each = start(ranks, program, folder)
        assert len(of(sound(program.run_dir), m.RolledBack)) == 1
        found += [sorted(one["bits"].items()) for one in each]

    assert all(one == found[0] for one in found)


def test_more_ranks_than_leaves_cannot_go_on_with_a_run(tmp_path):
    """It began with one rank, and is refused for three with two leaves, by name."""
    exact = {"parallel": {"exact": True, "leaves": 2}}
    assert alone(With(tmp_path, epochs=1, **exact))["phase"] == "completed"
    found = start(3, With(tmp_path, epochs=2, **exact), tmp_path)

    assert all("3 ranks with parallel.leaves: 2" in one["error"] for one in found)


def in_plain_torch(rank):
    """Train as a loop without tolariad does, in this process."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        batches = list(DataLoader(data(344), BATCH))
        for first in range(0, len(batches), LEAVES):
            leaves = batches[first : first + LEAVES]
            for inputs, targets in leaves:
                (nn.functional.cross_entropy(model(inputs), targets) / len(leaves)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
    return {"sha": sha_of(model, {name: one.hex() for name, one in bits(model).items()})}


def sha_of(model, parts):
    """Return a hash of the parameters, from the bytes of a state."""
    return hashlib.sha256("".join(parts[name] for name, _ in model.named_parameters()).encode()).hexdigest()


class AsPlain(With):
    """The same by exact sums."""

    def loader(self):
        """Return the whole data, in their order."""
        return DataLoader(data(344), BATCH), None

    def network(self):
        """Return the model."""
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))


def test_the_parameters_have_the_hash_of_a_plain_loop_of_torch(tmp_path):
    """Whose process knows nothing of tolariad: it divides each loss by the leaves of its step, clips, and updates."""
    (one,) = start(1, in_plain_torch, tmp_path)
    for ranks in (1, 3):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        program = AsPlain(folder, learning_rate={"base_lr": 0.01, "policy": "constant", "warmup_epochs": 0})
        program.model, program.more = program.network, {"task": Clips()}
        for found in start(ranks, program, folder):
            assert sha_of(program.network(), found["bits"]) == one["sha"], f"{ranks} ranks"
