"""A frozen seed: no bit of it moves, the host learns through it, and a run resumes across it."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load
from torch import nn

from tests.trainer.seeds.hosts import WIDTH, Remembering, grown
from tests.trainer.seeds.test_seeds_in_a_run import EPOCHS, HOSTS, MOVES, TASK, orders
from tolariad.core.calc.seeds.stages import Learning, Stage
from tolariad.trainer.checkpoints.tensors import same_bits

SEEDS = "seeds-00000.safetensors"
# The seed that lives to the end. It is frozen from update 19 on, or learns again from update 22 on.
INNER = tuple(one for one in MOVES if one[0] == "inner")
FROZEN = {Stage.PROBATIONARY: Learning.FROZEN, Stage.FOSSILIZED: Learning.FROZEN}
JUDGED = {Stage.PROBATIONARY: Learning.FROZEN}


def frozen(seed=None):
    """Return a slot with a frozen seed, and the bits of it."""
    slot = grown(Stage.FOSSILIZED, Remembering() if seed is None else seed)
    slot(torch.randn(5, WIDTH))
    slot.freeze(frozen=True)
    return slot, {name: tensor.clone() for name, tensor in slot.state_dict().items()}


def assert_still(slot, before):
    """Every parameter and buffer has its bits."""
    slot.hold()
    now = slot.state_dict()
    assert now.keys() == before.keys()
    assert all(same_bits(now[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("mode", ["slot", "each module", "none"])
def test_the_buffers_of_a_frozen_seed_keep_their_bits(mode):
    """Running statistics, a count that is written in place, and a buffer that is replaced, in a model that trains."""
    slot, before = frozen()
    if mode == "slot":
        slot.train()
    if mode == "each module":
        for module in slot.modules():
            nn.Module.train(module)
    for _ in range(3):
        slot(torch.randn(5, WIDTH)).sum().backward()

    assert not slot.seed.norm.training
    assert_still(slot, before)


def test_a_frozen_seed_draws_nothing_and_hands_gradients_on():
    """The host's generator is where it was, and its gradient is that of the seed's function."""
    slot, _ = frozen()
    slot.train()
    with torch.no_grad():
        slot.seed.scale.fill_(0.5)
    drawn = torch.get_rng_state()
    h = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    slot(h).sum().backward()
    norm = slot.seed.norm
    expected = 1 + 0.5 * norm.weight / (norm.running_var + norm.eps).sqrt()

    assert torch.equal(torch.get_rng_state(), drawn)
    torch.testing.assert_close(h.grad, expected.detach().expand(5, WIDTH))


def test_a_graph_that_is_kept_over_a_boundary_stays_valid():
    """Putting buffers back is no change that autograd could take for one."""
    slot, _ = frozen()
    h = torch.randn(5, WIDTH, requires_grad=True)
    loss = slot(h).square().sum()
    slot.hold()
    loss.backward()

    assert h.grad is not None


def test_a_copy_of_a_model_has_a_frozen_seed_of_its_own():
    """Its buffers are put back, and not those of the model that it was copied from."""
    slot, before = frozen()
    other = copy.deepcopy(slot).train()
    other(torch.randn(5, WIDTH))
    slot.seed.calls += 7

    assert_still(other, before)
    assert int(slot.seed.calls) == int(before["seed.calls"]) + 7


def test_a_seed_that_is_not_frozen_any_more_learns_as_before():
    """It is in the slot's mode; running statistics move."""
    slot, before = frozen()
    slot.train()
    slot.freeze(frozen=False)
    slot(torch.randn(5, WIDTH))
    slot.hold()

    assert slot.seed.norm.training
    assert not torch.equal(slot.seed.norm.running_mean, before["seed.norm.running_mean"])


@pytest.fixture
def trained(daemon_in, configured):
    """Train with these moves; each cut ends a trainer after that step. Return the daemon."""

    def train(name, learning, *cuts, task="Seeded", blueprint=f"{HOSTS}:Remembered", **more):
        script = orders(INNER, blueprint=blueprint, learning=learning)
        epochs = EPOCHS * more.get("accumulate", 1)
        daemon = daemon_in(name, epochs, script_orders=script)
        config = configured(f"{TASK}:{task}", epochs=epochs, batch_size=5, **{"ema": {"decay": 0.9}, **more})
        for cut in cuts:
            daemon.exit_after_step = cut
            daemon.train_here(config)
        setup = daemon.train_here(config)
        assert daemon.ended
        assert setup.garden.plots["inner"].stage is Stage.FOSSILIZED
        daemon.reruns()
        return daemon

    return train


def seeds_of(daemon, epoch):
    """Return the tensors of the seeds after an epoch, from its last checkpoint."""
    written = [one for one in daemon.committed if one.step == 10 * epoch][-1]
    return load((daemon.run_dir / "checkpoints" / written.id / SEEDS).read_bytes())


def moved(daemon):
    """Return the names of the tensors that differ between the checkpoints of the second epoch and of the third."""
    before, after = seeds_of(daemon, 2), seeds_of(daemon, 3)
    assert before.keys() == after.keys()
    return {name for name, tensor in before.items() if not same_bits(tensor, after[name])}


WAYS = {
    "adamw": {},
    "momentum": {"seeds": {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}, "lr": 0.01}},
    "an optimizer that counts": {"task": "Counts"},
    "a task that clips": {"task": "Clips"},
    "two optimizers": {"task": "Parts"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "without an average": {"ema": {}},
}


@pytest.mark.parametrize("way", WAYS)
def test_no_bit_of_a_frozen_seed_moves(trained, way):
    """Neither parameters, nor buffers, nor the optimizer's state. Only its moving average goes on."""
    daemon = trained("run", FROZEN, **WAYS[way])

    assert {name.partition(".")[0] for name in moved(daemon)} <= {"average"}
    host = [one for one in daemon.steps.values() if one.step > 20]
    assert len({one.loss for one in host}) == len(host)


@pytest.mark.parametrize("way", ["adamw", "momentum", "an optimizer that counts"])
def test_a_seed_that_is_not_frozen_moves(trained, way):
    """The same run without the setting, as a proof of the test before: everything of the seed moves."""
    found = moved(trained("run", None, **WAYS[way]))

    assert {"model", "average"} <= {name.partition(".")[0] for name in found}
    assert any(name.endswith(("running_mean", "calls")) for name in found)


CUTS = [(18,), (19, 21), (20,), (22, 24), (26,)]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("learning", [FROZEN, JUDGED], ids=["frozen", "learns again"])
def test_a_run_that_was_cut_short_around_a_freeze_ends_as_one_that_was_not(trained, learning, cuts):
    """Its checkpoints hold frozen seeds and seeds that learn again; each trainer builds them as they were."""
    key = str(learning)
    if key not in _undisturbed:
        _undisturbed[key] = trained("calm", learning).files("end")

    assert trained("cut", learning, *cuts).files("end") == _undisturbed[key]


# The last checkpoints of the runs that nothing cut short, by what they freeze.
_undisturbed: dict[str, dict[str, bytes]] = {}


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"task": "Counts"}, {"precision": "fp16"}])
def test_other_ways_to_train_resume_around_a_freeze_too(trained, options):
    """Accumulation, an optimizer that counts its steps, half precision."""
    cut = trained("cut", JUDGED, 19, 23, **options)

    assert cut.files("end") == trained("calm", JUDGED, **options).files("end")
