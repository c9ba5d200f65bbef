"""What several ranks cannot do is refused by name: each sentence of docs/ranks.md, mostly without processes."""

from __future__ import annotations

import os
import re

import pytest
import torch
from msgspec.structs import replace
from torch import distributed, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from tests.library.ranks.groups import Program, start
from tests.library.small import CONFIG, data
from tolariad import Tolaria
from tolariad.attach import words
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import read_settings
from tolariad.core.calc.settings.rules import check, resolved_json
from tolariad.library import ranks
from tolariad.library.crew import Crew, Member
from tolariad.library.leading import built
from tolariad.refusal import StartRefused
from tolariad.trainer.build import build
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lightning.logged import Log
from tolariad.trainer.lightning.stand_in import StandIn
from tolariad.trainer.setup import ALONE, Place
from tolariad.trainer.sharded import refuse_spread
from tolariad.trainer.tasks.task import FoundTask

TWO = Place(1, 2)


@pytest.fixture
def group():
    """A group of this process alone: what is wrapped here is wrapped as in a rank of two."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def fully_sharded(net):
    """Wrap by FSDP2."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net, mesh=distributed.device_mesh.init_device_mesh("cpu", (1,)))


def fully_sharded_by_wrapper(net):
    """Wrap by FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    # Its constructor asks for a device that this machine may not have.
    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.net = net
    return wrapper


def hooked(net):
    """Wrap, with a communication hook."""
    model = DistributedDataParallel(net)
    model.register_comm_hook(None, lambda _, bucket: torch.futures.Future())
    return model


def passed(net):
    """Wrap, and make backward passes."""
    model = DistributedDataParallel(net)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
    return model


def static(net):
    """Wrap with a static graph."""
    return DistributedDataParallel(net, static_graph=True)


@pytest.mark.parametrize(
    ("wraps", "why"),
    [
        (lambda net: net, "the model is a Linear: pass the model that DistributedDataParallel returns"),
        (DataParallel, "the model is a DataParallel: pass the model that DistributedDataParallel returns"),
        (fully_sharded, "the model is a FSDPLinear: pass the model that DistributedDataParallel returns"),
        (fully_sharded_by_wrapper, "the model is a FullyShardedDataParallel: pass the model that Distributed"),
        (lambda net: nn.Sequential(DistributedDataParallel(net)), "the model is a Sequential: pass the model that"),
        (static, "static_graph=True"),
        (hooked, "communication hook.*remove register_comm_hook"),
        (passed, r"has made a backward pass before run\(\)"),
    ],
    ids=["bare", "DataParallel", "FSDP2", "FSDP1", "inside", "static_graph", "hook", "backward"],
)
def test_a_model_that_is_wrapped_otherwise_is_refused(group, wraps, why):
    """Every rank says so before it waits for another one."""
    with pytest.raises(SetupRefused, match=why):
        ranks.bare(wraps(nn.Linear(4, 4)), TWO)


@pytest.mark.parametrize("wraps", [DataParallel, DistributedDataParallel, fully_sharded, fully_sharded_by_wrapper])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_wrapped_part_is_refused_wherever_it_is(group, wraps, depth):
    """The class of the whole model does not show it."""
    model = wraps(nn.Linear(4, 4))
    for _ in range(depth):
        model = nn.Sequential(nn.Linear(4, 4), model)

    where = ".".join("1" * depth)
    with pytest.raises(SetupRefused, match=rf"^{re.escape(where)}, a part of the model, is wrapped in "):
        refuse_spread(model)


ADAPTIVE = "the policy morpho_adaptive, which follows the validation of one rank"
# Each key that several ranks refuse: its value, and how the sentence calls it.
KEYS = {
    "prune.enabled": ({"prune": {"enabled": True}}, "prune.enabled"),
    "strategy": ({"strategy": "default"}, "seeds and strategies (strategy)"),
    "compile": ({"compile": True}, "compile"),
    "stop.tokens": ({"stop": {"tokens": 7}}, "stop.tokens"),
    "learning_rate.policy": ({"learning_rate": {"policy": "morpho_adaptive"}}, ADAPTIVE),
    "learning_rate.policy of a group": (
        {"optimizer": {"groups": [{"match": "0.*", "policy": "morpho_adaptive"}]}},
        ADAPTIVE,
    ),
}


def settings_of(given, **more):
    return read_settings({"task": "digits", **given, **more})


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_is_refused_for_a_task_and_for_a_program(key):
    """The configuration of a task is refused with the key; a program's as it begins. One process may have it."""
    given, name = KEYS[key]
    with pytest.raises(SetupRefused, match=rf"several ranks cannot do this yet: .*{re.escape(name)}"):
        ranks.for_ranks(settings_of(given), Place(0, 2))
    problems = check(settings_of(given, parallel={"ranks": 2}))
    assert [one.what for one in problems if one.path == key.split()[0]] == [
        f"several ranks cannot do this yet: {name} (docs/ranks.md)"
    ]
    assert check(settings_of(given)) == []


def test_a_lightning_module_with_exact_sums_is_refused():
    """Its stand-in for Lightning's trainer would have another rank than that of the start."""
    exact = {"task": "lightning:./module.py:Module", "parallel": {"exact": True, "leaves": 4}}

    (problem,) = check(settings_of(exact))
    assert (problem.path, "a LightningModule with exact sums" in problem.what) == ("task", True)


def test_several_refused_settings_are_named_together():
    """One start shows all of them."""
    given = {"compile": True, "stop": {"tokens": 7}, "prune": {"enabled": True}}

    with pytest.raises(SetupRefused, match=r"prune\.enabled, compile, stop\.tokens\. Remove it"):
        ranks.for_ranks(settings_of(given), Place(1, 2))


def test_train_is_refused_for_several_ranks(monkeypatch):
    """Its forward pass is not made by DistributedDataParallel. Exact sums are named, which need none."""
    assert ranks.place_of_train(Settings(), nn.Linear(2, 2)) == ALONE
    monkeypatch.setattr(ranks, "place_here", lambda: Place(0, 3))
    with pytest.raises(SetupRefused, match=r"3 ranks .*train\(\) makes .*Call run\(\) .*\{exact: true, leaves: 3\}"):
        ranks.place_of_train(Settings(), nn.Linear(2, 2))


@pytest.mark.parametrize(("here", "ranks_", "is_refused"), [("2", 4, True), ("4", 4, False), ("", 2, False)])
def test_ranks_on_several_machines_are_refused(monkeypatch, here, ranks_, is_refused):
    """By what torchrun says in the environment of each rank."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: ranks_)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)

    if not is_refused:
        assert ranks.place_here() == (1, ranks_)
        return
    with pytest.raises(SetupRefused, match="4 ranks train on several machines, 2 on this one"):
        ranks.place_here()


class Stream(IterableDataset):
    """Data without a length."""

    def __iter__(self):
        return iter([(torch.zeros(16), torch.tensor(0))] * 64)


class Plain:
    """A task."""

    def model(self, cfg):
        return nn.Linear(16, 4)

    def train_data(self, cfg):
        return data()

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class OfStream(Plain):
    def train_data(self, cfg):
        return DataLoader(Stream(), 8)


class ByItself(Plain):
    def training_step(self, model, batch, run):
        return run.update(self.loss(model, batch))


class ByClosure(Plain):
    def optimizer(self, model, cfg):
        return torch.optim.LBFGS(model.parameters())


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (OfStream, "2 ranks share out the training data, .*can only be iterated over"),
        (ByItself, "2 ranks make one update a step .*training_step or a closure"),
        (ByClosure, "2 ranks make one update a step .*training_step or a closure"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_that_cannot_be_shared_out_is_refused(task, why, rank):
    """On every rank, when it is built."""
    constant = {"policy": "constant", "warmup_epochs": 0}
    settings = read_settings(
        {"task": f"{__name__}:{task.__name__}", "learning_rate": constant, "parallel": {"ranks": 2}}
    )

    with pytest.raises(SetupRefused, match=why):
        build(resolved_json(replace(settings, rng_seed=1)), 1, None, Place(rank, 2))


@pytest.mark.sample(1)
@pytest.mark.parametrize("closes", [False, True])
def test_other_steps_than_those_of_one_loss_are_refused_in_the_loop(tmp_path, closes):
    """`run.update`, and a closure: all ranks make one update together."""

    class Updating(Program):
        def step_of(self, run, batch, epoch, rank, model, *_):
            if closes:
                run.step(closure=lambda: model(batch[0]).sum())
            else:
                run.update("host", model(batch[0]).sum())
                run.stepped()

    found = start(2, Updating(tmp_path / "run"), tmp_path)

    assert any("call run.step(loss), and not run.update() or a closure" in one["error"] for one in found), found


def renamed():
    """The model of the group, with another name for its last layer: DistributedDataParallel does not see that."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Identity(), nn.Linear(24, 4)
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["the model", "the optimizer"])
def test_ranks_that_have_built_other_things_are_refused(tmp_path, what):
    """Both are named, with the values of both ranks. Nothing is recorded."""

    class Differing(Program):
        def __call__(self, rank):
            if rank and what == "the model":
                self.model = renamed
            if rank and what == "the optimizer":
                self.optimizes = torch.optim.Adam
            return super().__call__(rank)

    found = start(2, Differing(tmp_path / "run"), tmp_path)

    assert all(f"StartRefused: the ranks cannot train together: {what}" in one["error"] for one in found), found


class FakeLink:
    """The link to a rank that has built these values. `told`: what rank 0 says to it."""

    def __init__(self, values):
        self.values, self.told = values, []

    def receive(self):
        return words.Built(values=self.values), ()

    def send(self, word):
        self.told.append(word)

    def close(self):
        """Close nothing."""


def test_all_that_must_be_equal_is_compared_and_named(run_dir):
    """Model, optimizer, batches, torch, threads, device: each that differs on one rank of three is named with both."""
    settings = replace(settings_of(CONFIG["tolaria"]), rng_seed=1)
    own = built(build(resolved_json(settings), 1, FoundTask(Plain(), "")))
    assert len(own) == 7
    for name in own:
        crew = Crew(run_dir, 3, lambda _: None, "group")
        links = FakeLink(own), FakeLink({**own, name: "another"})
        for rank, link in enumerate(links, 1):
            crew._members[rank] = Member(rank, os.getpid(), os.pidfd_open(os.getpid()), link)
        why = f"the ranks cannot train together: {name} is {own[name] or 'none'} on rank 0 and another on rank 2"
        with pytest.raises(StartRefused, match=re.escape(why)):
            crew.agree(own)
        assert all(isinstance(link.told[-1], words.Refused) for link in links)
        crew._meeting.close()
        crew.close()


def test_only_rank_0_gives_orders(tmp_path):
    """Another rank's is refused with a sentence. A stop may come from any."""

    class Ordering(Program):
        def step_of(self, run, batch, epoch, rank, model, *more):
            super().step_of(run, batch, epoch, rank, model, *more)
            if rank and run.batch == 2:
                self.said = [self.tolaria._live.rollback(1), self.tolaria.extend(epochs=9)]

        def __call__(self, rank):
            self.said = []
            return {**super().__call__(rank), "said": self.said}

    found = start(2, Ordering(tmp_path / "run", epochs=1), tmp_path)

    assert (found[0]["phase"], found[0]["said"], found[1]["said"][1]) == ("completed", [], False)
    assert "rank 1 of a group cannot order this: call it in rank 0" in found[1]["said"][0]


def test_a_program_under_torchrun_that_calls_train_is_told_so(tmp_path, group, monkeypatch):
    """As `Tolaria.train` itself says it."""
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)

    with pytest.raises(SetupRefused, match=r"2 ranks train together, and train\(\)"):
        Tolaria(CONFIG, run_dir=tmp_path / "run").train(nn.Linear(16, 4), data(), None, 1)


@pytest.mark.parametrize(("count", "is_refused"), [(1, False), (2, True)])
def test_a_lightning_module_that_logs_over_all_ranks_is_refused(count, is_refused):
    """`sync_dist` would wait for all ranks, and the values of rank 0 are recorded."""
    log = Log()
    log.among(count)
    log.at("training_step", "step")

    if is_refused:
        with pytest.raises(SetupRefused, match=r"self\.log\('loss', sync_dist=True\) is not supported with several"):
            log("loss", 1.0, sync_dist=True)
    else:
        log("loss", 1.0, sync_dist=True)
    log("loss", 1.0, sync_dist=False)


def test_a_lightning_module_that_gathers_is_refused():
    """`self.all_gather` asks the trainer for its strategy, which is none of the stand-in's."""
    stand_in = StandIn(max_epochs=1, accumulate=1, clip=(None, "norm"), datamodule=None, place=TWO)

    assert (stand_in.global_rank, stand_in.world_size, stand_in.is_global_zero) == (1, 2, False)
    with pytest.raises(AttributeError, match=r"self\.trainer\.strategy: tolariad has no Lightning trainer"):
        _ = stand_in.strategy
