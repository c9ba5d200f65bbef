"""The modules whose channels can be pruned: which dimension of which tensor holds them, and how a module is refitted.

Promises: a kind of module that is not in this table is refused by name. `refit` makes a module's own counts, such as
`out_channels`, agree with its tensors.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tolariad.trainer.pruning.units import Role
from tolariad.trainer.torch_private.modules import (
    BATCH_NORMS,
    CONVOLUTIONS,
    INSTANCE_NORMS,
    TRANSPOSED_CONVOLUTIONS,
    buffers_of,
    parameters_of,
)

_MIXES: Final = "normalises over its channels together: without one of them the others would change"
_REFUSED: Final[tuple[tuple[tuple[type[nn.Module], ...], str], ...]] = (
    ((nn.LayerNorm, nn.RMSNorm), _MIXES),
    ((nn.MultiheadAttention,), "has heads: they are pruned whole"),
    ((nn.RNNBase, nn.RNNCellBase), "is recurrent: its states have its channels"),
)
# Inside them, channels are mixed in ways that the traced graph takes for others, or cannot take at all.
_OPAQUE: Final = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)


class ChannelDims(NamedTuple):
    """Names and dimensions of a module's tensors that hold the channels of one of its sides."""

    parameters: tuple[tuple[str, int], ...]
    buffers: tuple[tuple[str, int], ...] = ()
    role: Role = Role.SCALES


def has_values(parameter: Tensor) -> bool:
    """Return whether a parameter has its shape already. One of a lazy module gets it in the first call."""
    return not is_lazy(parameter)


def linear_sides(module: nn.Module) -> tuple[int, int] | None:
    """Return the dimensions of a linear layer's weight that hold its outputs and its inputs; None for other modules."""
    if isinstance(module, nn.Linear):
        return 0, 1
    # Conv1D of transformers, whose weight is transposed, by its parts: transformers need not be installed.
    return (1, 0) if {"weight", "bias"} == parameters_of(module).keys() and hasattr(module, "nf") else None


def opaque_kind(module: nn.Module, output: Any) -> str:
    """Return why a module's inside is not followed by the graph, as a clause; "" if it is.

    `output` is what a call of the module returned.
    """
    if isinstance(module, _OPAQUE):
        return _why_refused(module)
    # The graph's tracing wants a tensor of the layers that it knows.
    if not isinstance(output, Tensor) and not isinstance(places(module, outputs=True), str):
        return f"gives a {type(output).__name__} instead of a tensor"
    return ""


def _why_refused(module: nn.Module) -> str:
    return next((why for kinds, why in _REFUSED if isinstance(module, kinds)), "")


class _Transposed:
    """The methods that Torch-Pruning calls for a linear layer with a transposed weight. It only compares the two that
    prune.
    """

    def prune_out_channels(self, layer: Any, _: Any) -> Any:
        return layer

    def prune_in_channels(self, layer: Any, _: Any) -> Any:
        return layer

    def get_out_channels(self, layer: Any) -> int:
        return int(layer.weight.shape[1])

    def get_in_channels(self, layer: Any) -> int:
        return int(layer.weight.shape[0])

    def get_out_channel_groups(self, _: Any) -> int:
        return 1

    get_in_channel_groups = get_out_channel_groups


def unknown_to_torch_pruning(model: nn.Module) -> dict[type[nn.Module], _Transposed]:
    """Return the description, for Torch-Pruning, of linear layers that are not torch's own."""
    return {type(one): _Transposed() for one in model.modules() if linear_sides(one) == (1, 0)}


def is_depthwise(module: nn.Module) -> bool:
    """Return whether each output channel of this convolution is computed from the same channel of its input."""
    return (
        isinstance(module, CONVOLUTIONS)
        and not isinstance(module, TRANSPOSED_CONVOLUTIONS)
        and module.groups == module.in_channels == module.out_channels > 1
    )


def places(module: nn.Module, *, outputs: bool) -> ChannelDims | str:
    """Return where the module's output channels (else its input channels) lie, or a clause: why it is refused."""
    found: ChannelDims | str = _why_refused(module) or f"is a {type(module).__name__}, whose channels are not known"
    if (linear := linear_sides(module)) is not None:
        rows, columns = linear
        found = _of(module, [("weight", rows), ("bias", 0)], Role.PRODUCES)
        found = found if outputs else _of(module, [("weight", columns)], Role.READS)
    elif isinstance(module, CONVOLUTIONS):
        found = _of_convolution(module, outputs=outputs)
    elif isinstance(module, (*BATCH_NORMS, *INSTANCE_NORMS)):
        statistics = ("running_mean", "running_var")
        kept = tuple((name, 0) for name in statistics if buffers_of(module).get(name) is not None)
        found = _of(module, [("weight", 0), ("bias", 0)])._replace(buffers=kept)
    elif isinstance(module, nn.GroupNorm):
        found = _of(module, [("weight", 0), ("bias", 0)])
    elif isinstance(module, nn.PReLU):
        found = _of(module, [("weight", 0)] if module.num_parameters > 1 else [])
    elif isinstance(module, nn.Embedding) and not module.sparse:
        found = _of(module, [("weight", 1)], Role.PRODUCES)
    return found if isinstance(found, str) else _checked(module, found)


def _of(module: nn.Module, names: list[tuple[str, int]], role: Role = Role.SCALES) -> ChannelDims:
    """Leave out what the module does not have, such as a bias."""
    return ChannelDims(tuple((name, dim) for name, dim in names if getattr(module, name) is not None), role=role)


def _of_convolution(module: Any, *, outputs: bool) -> ChannelDims | str:
    rows, columns = (1, 0) if isinstance(module, TRANSPOSED_CONVOLUTIONS) else (0, 1)
    if is_depthwise(module):
        return _of(module, [("weight", 0), ("bias", 0)], Role.PRODUCES)
    if module.groups > 1:
        return f"is a convolution in {module.groups} groups, which would become unequal"
    if outputs:
        return _of(module, [("weight", rows), ("bias", 0)], Role.PRODUCES)
    return _of(module, [("weight", columns)], Role.READS)


def _checked(module: nn.Module, found: ChannelDims) -> ChannelDims | str:
    computed = [name for name, _ in found.parameters if name not in parameters_of(module)]
    return f"computes its {computed[0]} (a parametrization)" if computed else found


def refit(module: nn.Module) -> None:
    """Let the module's counts agree with the sizes of its tensors, after channels were removed from them."""
    shape: Any = getattr(getattr(module, "weight", None), "shape", None)
    counts: dict[str, int] = {}
    if isinstance(module, nn.Linear):
        counts = {"out_features": shape[0], "in_features": shape[1]}
    elif linear_sides(module):
        counts = {"nf": shape[1], "nx": shape[0]}
    elif is_depthwise(module):
        counts = {"groups": shape[0], "in_channels": shape[0], "out_channels": shape[0]}
    elif isinstance(module, CONVOLUTIONS):
        rows, columns = (1, 0) if isinstance(module, TRANSPOSED_CONVOLUTIONS) else (0, 1)
        counts = {"out_channels": shape[rows], "in_channels": shape[columns]}
    elif isinstance(module, nn.Embedding):
        counts = {"embedding_dim": shape[1]}
    elif isinstance(module, nn.PReLU):
        counts = {"num_parameters": shape[0]}
    _set(module, counts)


def refit_norm(module: nn.Module, gone: int) -> None:
    """Lower the number of channels that a normalisation expects. It may have no tensors that show the number."""
    if isinstance(module, (*BATCH_NORMS, *INSTANCE_NORMS)):
        _set(module, {"num_features": int(getattr(module, "num_features")) - gone})  # noqa: B009 - of several classes
    elif isinstance(module, nn.GroupNorm):
        left = module.num_channels - gone
        _set(module, {"num_groups": module.num_groups * left // module.num_channels, "num_channels": left})


def _set(module: nn.Module, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        setattr(module, name, count)
