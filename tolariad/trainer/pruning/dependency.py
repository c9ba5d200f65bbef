"""Torch-Pruning's dependency graph of a model, and what depends on the outputs of one of its layers.

Torch-Pruning guesses for every operation how channels pass it. Where its code fails, the operation is marked: a layer
whose channels reach it is refused, and the others are searched. All of Torch-Pruning that is used stands here.

Promises: the search visits each index of a tensor once, and ends for every graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from tolariad.trainer.pruning.copies import tensors_in
from tolariad.trainer.pruning.modules import has_values, unknown_to_torch_pruning
from tolariad.trainer.pruning.trial import cut, run

if TYPE_CHECKING:
    from torch import Tensor

    from tolariad.trainer.pruning.trial import Trial

_OF_TORCH_PRUNING = "torch_pruning.ops"
_OUTPUTS = "its channels are outputs of the model"


class Side(NamedTuple):
    """A module's outputs or inputs, or a parameter of its own with the dimension that holds channels."""

    target: Any
    outputs: bool
    dim: int = 0


class _Index(NamedTuple):
    """An index of a tensor, and the channel of the root from which it was reached. Torch-Pruning gives the names."""

    idx: int
    root_idx: int


# For each side that a group has: the unit of each of its indices.
Sides = dict[Side, dict[int, int]]


class Dependents(NamedTuple):
    """The dependents of a layer's outputs.

    * `sides`: the sides of modules, and for each of their indices the unit that it belongs to.
    * `width`: the number of units.
    * `why`: the reason why no unit may be pruned, as a clause; "" if they may.
    """

    sides: Sides
    width: int
    why: str


class Graph:
    """The graph of one traced model."""

    def __init__(self, model: nn.Module, trial: Trial) -> None:
        """Trace `model`, a copy of the trial's. Raises ImportError without torch-pruning (extra `pruning`)."""
        into = cut(model, [*trial.opaque])
        self._into: dict[Any, str] = {}
        self._most = max((size for one in model.parameters() if has_values(one) for size in one.shape), default=0)

        def ends(outputs: Any) -> list[Tensor]:
            """Return the outputs and what opaque modules read, each as the result of an operation of its own.

            Torch-Pruning does not see the result of a module itself.
            """
            given = [one * 1.0 for one in tensors_in(outputs) if one.grad_fn is not None]
            read = [(one * 1.0, name) for one, name in into]
            self._into = {one.grad_fn: f"{name} {trial.opaque[name]}" for one, name in read}
            return given + [one for one, _ in read]

        self._graph = _isolating()
        self._graph.build_dependency(
            model,
            trial.inputs,
            forward_fn=run,
            output_transform=ends,
            customized_pruners=unknown_to_torch_pruning(model),
            ignored_layers=[model.get_submodule(name) for name in trial.opaque],
            verbose=False,
        )

    def has(self, module: nn.Module) -> bool:
        """Return whether the module's outputs are in the graph."""
        return module in self._graph.every

    def dependents(self, root: nn.Module) -> Dependents:
        """Return what depends on the root's output channels, by unit. Raises what Torch-Pruning raises.

        Channels that reach the same index are one unit, as in the two halves of a gate. Torch-Pruning's own search
        keeps only the first of them. It does not end with rotary embeddings, because each round shifts the indices.
        """
        prune, width = self._graph.get_pruner_of_module(root).prune_out_channels, self._graph.get_out_channels(root)
        origins: dict[tuple[Any, Any], dict[int, int]] = defaultdict(dict)
        met: list[set[int]] = []
        pending = [(self._graph.every[root], prune, [_Index(channel, channel) for channel in range(width)])]
        why = "" if width else "it has no channels"
        while pending:
            node, how, indices = pending.pop()
            known = origins[node, how]
            fresh = []
            for one in indices:
                if one.idx not in known:
                    fresh.append(one)
                elif known[one.idx] != one.root_idx:
                    met.append({known[one.idx], one.root_idx})
                known.setdefault(one.idx, one.root_idx)
            if any(not 0 <= one.idx < self._most for one in fresh):
                return Dependents({}, 0, "the traced graph names more channels than any layer has: it mixes them")
            if fresh:
                why = why or self._end(node)
                pending += [
                    (to.target, to.handler, _mapped(to, fresh)) for to in node.dependencies if to.is_triggered_by(how)
                ]
        unit_of = joined(width, iter(met))
        sides: Sides = defaultdict(dict)
        for (node, how), known in origins.items():
            if known and type(node.module).__module__ != _OF_TORCH_PRUNING:
                sides[self._side(node, how)].update({index: unit_of[channel] for index, channel in known.items()})
        return Dependents(sides, max(unit_of, default=-1) + 1, why)

    def _end(self, node: Any) -> str:
        """Return why channels that reach this node cannot go, as a clause; "" if they can."""
        if node.module in self._graph.unknown:
            return f"the traced graph does not know how its channels pass {node.grad_fn.name()}"
        if type(node.module).__name__ == "_OutputOp":
            return self._into.get(node.grad_fn, _OUTPUTS)
        return ""

    def _side(self, node: Any, how: Any) -> Side:
        if isinstance(node.module, nn.Module):
            return Side(node.module, outputs=self._graph.is_out_channel_pruning_fn(how))
        return Side(node.module, outputs=False, dim=node.pruning_dim)


def _isolating() -> Any:
    """Return a graph that survives operations at which Torch-Pruning's functions fail. Raises ImportError.

    `every`: all nodes. `unknown`: operations that failed.
    """
    import torch_pruning

    class _Isolating(torch_pruning.DependencyGraph):  # type: ignore[misc]
        def _build_dependency(self, nodes: dict[Any, Any]) -> None:
            """Do what comes before the functions that fail, and let them go through the others."""
            super()._build_dependency(nodes)
            self.every = nodes
            self.unknown = set(_failing(self, nodes))
            self.module2node = {module: node for module, node in nodes.items() if module not in self.unknown}

    return _Isolating()


class _OneNode:
    """The graph with a single node to go through: Torch-Pruning's functions take all of them or none."""

    def __init__(self, graph: Any, module: Any, node: Any) -> None:
        self._graph, self.module2node = graph, {module: node}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


def _failing(graph: Any, nodes: dict[Any, Any]) -> Iterator[Any]:
    """Yield the operations at which Torch-Pruning's functions fail."""
    from torch_pruning.dependency import index_mapping, shape_infer

    failed = set()
    for step in (shape_infer.init_shape_information, index_mapping.update_index_mapping):
        for module, node in nodes.items():
            try:
                if module not in failed:
                    step(_OneNode(graph, module, node))
            except Exception:  # noqa: BLE001 - a guess about an operation that it does not know
                failed.add(module)
                yield module


def _mapped(dependency: Any, indices: list[_Index]) -> list[_Index]:
    for mapping in dependency.index_mapping:
        indices = indices if mapping is None else list(mapping(indices))
    return indices


def joined(count: int, sets: Iterator[set[int]]) -> list[int]:
    """Return the number of each element's class, if the elements of each set are in one. Classes count from 0."""
    leader = list(range(count))

    def find(one: int) -> int:
        while leader[one] != one:
            one = leader[one]
        return one

    for members in sets:
        first, *rest = sorted({find(one) for one in members})
        for one in rest:
            leader[one] = first
    numbers: dict[int, int] = {}
    return [numbers.setdefault(find(one), len(numbers)) for one in range(count)]
