"""State that an optimizer shares between parameters is shared again after a restore, or refused by its path."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.checkpoints.own import OwnTask, bits, loaded, save, step
from tolariad.trainer.checkpoints.capture import capture
from tolariad.trainer.checkpoints.restore import restore, taken_apart
from tolariad.trainer.checkpoints.snapshot import Position
from tolariad.trainer.checkpoints.tree import NotCapturable, decode_tree, encode_tree
from tolariad.trainer.checkpoints.tree import made as as_values
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.optim.configured import Groups

AT = Position(3, 1, 3)
CPU = torch.device("cpu")


class Counting(torch.optim.SGD):
    """An optimizer with one counter and one average for all parameters."""

    is_shared = True

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                one = self.state[parameter]
                if not one:
                    other = next((held for held in self.state.values() if held), None)
                    if other is None or not self.is_shared:
                        other = {"count": torch.zeros(()), "deep": [{"mean": torch.zeros(3)}]}
                    one.update(count=other["count"], deep=[{"mean": other["deep"][0]["mean"]}], own=torch.zeros(()))
                one["count"] += 1
                one["own"] += one["count"]
                one["deep"][0]["mean"].lerp_(parameter.grad.mean().expand(3), 0.1)
                parameter.sub_(parameter.grad * one["count"] + one["deep"][0]["mean"].mean(), alpha=0.01)


class Peering(Counting):
    """An optimizer whose state also refers to `what` of a parameter."""

    what = staticmethod(lambda parameter: parameter)

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for parameter, one in self.state.items():
            one["peer"] = self.what(parameter)


@pytest.fixture
def own(made, monkeypatch):
    """Return builds of a run with an optimizer of this class, with or without the trial step."""

    def build(kind, *, tried=False):
        monkeypatch.setattr(OwnTask, "optimizer", lambda self, model, cfg: kind(model.parameters(), lr=0.1))
        monkeypatch.setattr(
            "tolariad.trainer.optim.configured._own", lambda one: Groups(one, (None,) * len(one.param_groups))
        )
        if not tried:
            monkeypatch.setattr("tolariad.trainer.parts.owners.try_a_step", lambda optimizer: None)
        return made()

    return build


def trained(setup, *seeds):
    for seed in seeds:
        step(setup, seed)
    return setup


def counts(setup):
    return [one["count"] for one in setup.optimizer.state.values()]


def test_a_tensor_that_all_parameters_share_is_stored_once_and_shared_again(tmp_path, own):
    """Restored into a live run, a new one, and one that had stopped sharing: the same next steps, bit for bit."""
    one = trained(own(Counting), 0, 1, 2)
    held = loaded(tmp_path, save(one, tmp_path))
    first = bits(one, tmp_path, "first")
    after = bits(trained(one, 3, 4), tmp_path, "after")
    loose = trained(own(Counting), 5)
    for state in loose.optimizer.state.values():
        state["count"] = state["count"].clone()
    for name, setup in (("living", one), ("fresh", own(Counting)), ("loose", loose)):
        restore(setup, held)
        assert len({count.data_ptr() for count in counts(setup)}) == 1, name
        assert len({state["own"].data_ptr() for state in setup.optimizer.state.values()}) == len(counts(setup)), name
        assert bits(setup, tmp_path, name) == first, name
        assert bits(trained(setup, 3, 4), tmp_path, f"{name} on") == after, name
    assert sum(name.endswith(".count") for name in capture(one, AT).tensors["optimizer-00000.safetensors"]) == 1


def test_two_tensors_never_come_back_into_one_that_the_optimizer_shares(tmp_path, own, monkeypatch):
    """Each parameter gets its own state from the checkpoint; none overwrites another's."""
    shared = trained(own(Counting), 0)
    separate = type("Counting", (Counting,), {"is_shared": False, "__module__": Counting.__module__})
    apart = trained(own(separate), 0, 1)
    for number, count in enumerate(counts(apart)):
        count.fill_(number)
    held = loaded(tmp_path, save(apart, tmp_path))
    monkeypatch.setattr(Counting, "is_shared", False)
    restore(shared, held)

    assert [float(count) for count in counts(shared)] == list(range(len(counts(apart))))
    assert bits(shared, tmp_path, "shared") == bits(apart, tmp_path, "apart")


def test_a_snapshot_in_memory_keeps_the_sharing_too(own):
    """The same for a restore by the fast tier."""
    one = trained(own(Counting), 0, 1, 2)
    live = capture(one, AT)
    tensors = {group: {n: t.clone() for n, t in held.items()} for group, held in live.tensors.items()}
    copied = type(live)(**{**{f: getattr(live, f) for f in live.__dataclass_fields__}, "tensors": tensors})
    fresh = own(Counting)
    restore(fresh, taken_apart(copied))

    assert len({count.data_ptr() for count in counts(fresh)}) == 1
    assert {float(count) for count in counts(fresh)} == {float(counts(one)[0])}


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (lambda parameter: parameter.detach().view(-1)[:2], "model"),
        (lambda parameter: _halves()[0], "optimizer"),
    ],
    ids=["a part of a parameter", "a part of another of its own"],
)
def test_what_would_come_back_as_another_tensor_is_refused_by_its_path(own, what, named):
    """The error names both."""
    kind = type("Peer", (Peering,), {"what": staticmethod(what)})
    setup = trained(own(kind), 0)
    if named == "optimizer":
        whole, half = _halves()[1], _halves()[0]
        for state in setup.optimizer.state.values():
            state["peer"] = whole
            state["half"] = half
    with pytest.raises(NotCapturable, match=rf"^optimizer\.state\..*\.(peer|half): .* memory .* {named}\.") as caught:
        capture(setup, AT)
    assert caught.value.path.startswith("optimizer.state.")


_WHOLE = torch.zeros(8)


def _halves():
    return _WHOLE[:4], _WHOLE


def test_an_optimizer_that_keeps_a_part_of_a_parameter_is_refused_before_training(own):
    """The trial step on a one-element parameter finds it."""
    kind = type("Peer", (Peering,), {"what": staticmethod(lambda parameter: parameter.detach().view(-1)[:1])})
    with pytest.raises(SetupRefused, match=r"optimizer\.0\.peer: .* memory"):
        own(kind, tried=True)


def test_an_optimizer_that_keeps_a_whole_parameter_has_it_again_after_a_restore(tmp_path, own):
    """As the same memory: SAM leaves a kept copy in the place of the parameter."""
    one = trained(own(Peering, tried=True), 0, 1)
    held = loaded(tmp_path, save(one, tmp_path))
    after = bits(trained(one, 2), tmp_path, "one")
    fresh = own(Peering)
    restore(fresh, held)
    assert all(state["peer"].data_ptr() == parameter.data_ptr() for parameter, state in fresh.optimizer.state.items())
    assert bits(trained(fresh, 2), tmp_path, "fresh") == after


def test_neighbours_in_one_memory_are_no_sharing(own):
    """Adjacent views of one flat buffer are restored separately."""
    flat = torch.zeros(64)
    places = iter(range(0, 64, 4))
    kind = type("Flat", (Peering,), {"what": staticmethod(lambda parameter: flat[(at := next(places)) : at + 4])})
    setup = trained(own(kind), 0)
    assert capture(setup, AT).nbytes


def test_a_tensor_that_stands_at_two_places_of_a_tree_is_one_again():
    """The same for any tree, including the task's own state."""
    one, other = torch.arange(3.0), torch.arange(3.0)
    data, tensors = encode_tree({"a": one, "b": [one, other], "empty": [torch.zeros(0), torch.zeros(0)]}, "x")
    back = as_values(decode_tree(data, tensors), CPU)

    assert sorted(tensors) == ["x.a", "x.b.1", "x.empty.0", "x.empty.1"]
    assert back["a"] is back["b"][0]
    assert back["b"][1] is not back["a"]
    assert torch.equal(back["b"][1], other)
