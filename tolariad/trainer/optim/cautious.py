"""AdamW that moves only the coordinates whose momentum agrees with the gradient (Liang et al. 2024, arXiv:2411.16085).

Promises: with `caution=False` the bits are those of `torch.optim.AdamW`. With `caution=True` the update equals timm's
`AdamW(caution=True)` up to rounding. The state has Adam's names (`step`, `exp_avg`, `exp_avg_sq`), so each optimizer
can load the other's. The mask is never stored. On one device both ways of computing give the same bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, overload

import torch
from torch.optim.optimizer import Optimizer

from tolariad.trainer.optim import cautious_chunks, cautious_together
from tolariad.trainer.optim.cautious_rule import AgreementCount, Member, Options, local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# On the CPU a tensor below this many elements costs more in calls than in arithmetic (measured; see
# docs/optimizers.md).
FOREACH_BELOW: Final = 16_384
# Options of torch's Adam family that a call or a loaded state may contain, and what to use instead.
_UNSUPPORTED: Final = {
    "amsgrad": "use torch.optim.AdamW for it",
    "maximize": "negate the loss",
    "capturable": "step outside the CUDA graph",
    "differentiable": "use torch.optim.AdamW for it",
    "compiled": "leave it out: neither way of computing needs a compiler",
}
_GROUP_DEFAULTS: Final[dict[str, Any]] = {
    "mask_eps": 1e-3,
    "caution": True,
    "cautious_weight_decay": False,
    "live_mean": False,
    "max_scale": None,
    "foreach": None,
}


class CautiousAdamW(Optimizer):
    r"""AdamW with a sign-alignment mask; the algorithm of source document 002.

    One step t of a tensor :math:`\theta` with gradient :math:`g`:

    .. math::
        \theta &\leftarrow (1 - \eta\lambda)\,\theta \\
        m &\leftarrow \beta_1 m + (1 - \beta_1)\,g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
        \phi_i &= [m_i g_i > 0], \qquad s = 1 / \max(\operatorname{mean}(\phi), \xi) \\
        \theta &\leftarrow \theta - \frac{\eta}{1-\beta_1^t}\;
            \frac{s\,\phi \odot m}{\sqrt{v / (1-\beta_2^t)} + \epsilon}

    The mean is over the whole tensor, a sharded one's (DTensor, FSDP) too: its counts are summed over the mesh. The
    sign of :math:`m_i g_i` is right even if the product underflows.

    Args:
        params: parameters, named parameters or groups, as for any torch optimizer; floating point, dense gradients.
        lr, betas, eps, weight_decay: as AdamW's; decay is decoupled and not masked.
        mask_eps: :math:`\xi`, the least mean the mask is divided by.
        caution: False is plain AdamW.
        cautious_weight_decay: decay only coordinates whose sign is the momentum's (arXiv:2510.12402), independent of
            `caution`.
        live_mean: take the mean over coordinates whose gradient is not 0. Use it for embeddings and pruned tensors.
            Otherwise one row of a thousand moves a thousand times as far as with AdamW. And a pruned tensor trains
            differently from the smaller tensor that it replaces.
        max_scale: upper bound of :math:`s`; None: :math:`1/\xi`.
        foreach: True: all tensors of a group together; False: one after the other, in chunks of 2**18 elements that
            stay in cache. None chooses by size. On the CPU tensors below 16 384 elements are updated together, because
            calls dominate, and larger ones in chunks, because memory traffic does. On other devices all are updated
            together. Times are in docs/optimizers.md.
        track_kept_fraction: keep the share of coordinates that moved, see `last_kept_fraction`.
        maximize, capturable, differentiable, compiled: only False is accepted.

    Raises ValueError for values out of range and refused options, TypeError for complex parameters. `step` raises
    RuntimeError for sparse gradients.
    """

    def __init__(  # noqa: PLR0917 - the source's argument order
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        mask_eps: float = 1e-3,
        *,
        caution: bool = True,
        cautious_weight_decay: bool = False,
        live_mean: bool = False,
        max_scale: float | None = None,
        foreach: bool | None = None,
        track_kept_fraction: bool = False,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        compiled: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "mask_eps": mask_eps,
            "caution": caution,
            "cautious_weight_decay": cautious_weight_decay,
            "live_mean": live_mean,
            "max_scale": max_scale,
            "foreach": foreach,
        }
        _check_flags(
            {"maximize": maximize, "capturable": capturable, "differentiable": differentiable, "compiled": compiled}
        )
        self.track_kept_fraction = track_kept_fraction
        self._kept = AgreementCount()
        super().__init__(params, defaults)

    @property
    def last_kept_fraction(self) -> float | None:
        """The share of coordinates whose momentum agreed with the gradient in the last step, over all tensors.

        None if it is not tracked, or no tensor was updated with caution. With `live_mean`, the share of live
        coordinates.
        """
        return self._kept.fraction() if self.track_kept_fraction else None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. Its options are checked like the constructor's arguments; an invalid group is not added."""
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state; `load_state_dict` calls this too.

        Groups of torch's Adam family get the missing options.
        """
        super().__setstate__(state)
        self.__dict__.setdefault("track_kept_fraction", False)
        self.__dict__["_kept"] = AgreementCount()
        for group in self.param_groups:
            # An option of older versions, which affected only rounding.
            group.pop("compiled", None)
            for key, value in _GROUP_DEFAULTS.items():
                group.setdefault(key, value)
            _check_group(group)

    def __getstate__(self) -> dict[str, Any]:
        """Return groups, state and options, without the counts of the last step."""
        return {**super().__getstate__(), "track_kept_fraction": self.track_kept_fraction}

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient. Return the loss of `closure`, or None without one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._kept = AgreementCount()
        for group in self.param_groups:
            members = [self._member(p) for p in group["params"] if p.grad is not None]
            _update(group, members, self._kept)
        return loss

    def _member(self, parameter: torch.Tensor) -> Member:
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:
            raise RuntimeError("CautiousAdamW needs dense gradients; build the embedding with sparse=False")
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0, dtype=_step_dtype())
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return Member(
            whole=parameter,
            parameter=local(parameter),
            gradient=local(gradient, like=parameter),
            exp_avg=local(state["exp_avg"]),
            exp_avg_sq=local(state["exp_avg_sq"]),
            step=state["step"],
        )


def _update(group: dict[str, Any], members: list[Member], moved: AgreementCount) -> None:
    """Update the members of a group, in chunks or together."""
    options = Options(float(group["lr"]), *group["betas"], **{key: group[key] for key in Options._fields[3:]})
    together: dict[tuple[torch.device, torch.dtype], list[Member]] = {}
    for member in members:
        if _goes_together(member.parameter, group):
            together.setdefault((member.parameter.device, member.parameter.dtype), []).append(member)
        else:
            cautious_chunks.update(member, options, moved)
    for alike in together.values():
        cautious_together.update(alike, options, moved)


def _goes_together(parameter: torch.Tensor, group: dict[str, Any]) -> bool:
    """Return whether a tensor is updated together with others, not in chunks.

    The group or its size and device decide.
    """
    if group["foreach"] is not None:
        return bool(group["foreach"])
    return parameter.numel() < FOREACH_BELOW or parameter.device.type != "cpu"


def _step_dtype() -> torch.dtype:
    """Return the dtype of the step count, as torch does: float64 if that is the default, else float32."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def _check_flags(flags: dict[str, Any]) -> None:
    for name, instead in _UNSUPPORTED.items():
        if flags.get(name):
            raise ValueError(f"CautiousAdamW does not support {name}=True; {instead}")


def _check_group(group: dict[str, Any]) -> None:
    _check_flags(group)
    beta1, beta2 = group["betas"]
    ranges = {
        "lr": (group["lr"], 0.0, math.inf),
        "eps": (group["eps"], 0.0, math.inf),
        "weight_decay": (group["weight_decay"], 0.0, math.inf),
        "betas[0]": (beta1, 0.0, 1.0),
        "betas[1]": (beta2, 0.0, 1.0),
    }
    for name, (value, low, end) in ranges.items():
        # This form of the test also refuses NaN, and a beta of 1, whose bias correction would be 0/0.
        if not low <= value < end:
            raise ValueError(f"{name} must be at least {low:g} and below {end:g}, not {value}")
    if not 0.0 < group["mask_eps"] <= 1.0:
        raise ValueError(f"mask_eps must be above 0 and at most 1, not {group['mask_eps']}")
    if group["max_scale"] is not None and not group["max_scale"] >= 1.0:
        raise ValueError(f"max_scale must be at least 1 (or None), not {group['max_scale']}")
    for parameter in group["params"]:
        if not parameter.is_floating_point():
            raise TypeError(f"CautiousAdamW needs real floating-point parameters, not {parameter.dtype}")
