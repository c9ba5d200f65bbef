"""One slot of a run: its seed, the seed's owner, and the counts that gates judge.

Promises: `state` and `load` are exact, so a run that resumes judges a seed as the run that was never interrupted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tolariad.core.calc.seeds.blending import alpha
from tolariad.core.calc.seeds.gates import NOT_MEASURED
from tolariad.core.calc.seeds.stages import Learning, Stage

if TYPE_CHECKING:
    import torch

    from tolariad.trainer.optim.owners import Owner
    from tolariad.trainer.seeds.slot import SeedSlot

_KEPT: Final = (
    *("number", "entered", "blend_steps", "gradient_norm", "dropped", "input_shape", "input_dtype"),
    "learning",
)


@dataclass
class Plot:
    """A slot of the run.

    * `prefix`: the beginning of the names of its seed's tensors.
    * `owner`: the owner of the seed's parameters; None without a seed.
    * `number`: the number of the seed's germination in this run.
    * `entered`: the step after which the seed entered its stage.
    * `blend_steps`: the number of updates over which alpha rises.
    * `gradient_norm`: the norm in the newest update, -1 if there was none.
    * `dropped`: the updates since the last move that were dropped because the seed's gradients were not finite.
    * `input_shape`, `input_dtype`: the slot's input in the first step of the run; empty before it.
    * `learning`: a value of Learning.
    """

    slot: SeedSlot
    prefix: str
    owner: Owner | None = None
    parameters: list[torch.nn.Parameter] = field(default_factory=list)
    number: int = 0
    entered: int = 0
    blend_steps: int = 0
    gradient_norm: float = NOT_MEASURED
    dropped: int = 0
    input_shape: tuple[int, ...] = ()
    input_dtype: str = ""
    learning: str = Learning.TRAIN.value

    @property
    def name(self) -> str:
        """The slot's name."""
        return self.slot.name

    @property
    def stage(self) -> Stage:
        """The stage of the slot."""
        return self.slot.stage

    @property
    def is_permanent(self) -> bool:
        """Whether the seed is a part of the model for good."""
        return self.stage is Stage.FOSSILIZED

    @property
    def is_frozen(self) -> bool:
        """Whether no update moves the seed."""
        return self.slot.is_frozen

    @property
    def alpha(self) -> float:
        """The share of the seed in the slot's output."""
        return self.slot.alpha_value

    def owned_by(self, owner: Owner | None) -> None:
        """Note who owns the seed's parameters; None: there is no seed."""
        self.owner = owner
        self.parameters = [] if owner is None else owner.optimizer.param_groups[0]["params"]

    def measured(self, norm: float) -> None:
        """Note the gradient norm of the update that is being made. If it is not finite, the update is dropped."""
        if math.isfinite(norm):
            self.gradient_norm = norm
        else:
            self.dropped += 1

    def take_input(self) -> None:
        """Take the slot's input of the step that was just made as that of the run, if there is none yet."""
        seen = self.slot.last_input
        if not self.input_dtype and seen is not None:
            shape, dtype = seen
            self.input_shape, self.input_dtype = shape, str(dtype).removeprefix("torch.")

    def forget_input(self) -> None:
        """The slot's input has another shape from now on: wait for the next step."""
        self.input_shape, self.input_dtype = (), ""

    def germinated(self, number: int, step: int) -> None:
        """Begin the life of a seed after step `step`."""
        self.number, self.blend_steps, self.gradient_norm = number, 0, NOT_MEASURED
        self.enter(Stage.GERMINATED, step)

    def enter(self, stage: Stage, step: int, blend_steps: int = 0, learning: Learning = Learning.TRAIN) -> None:
        """Enter a stage after step `step`. `blend_steps`: the number of updates over which alpha rises in BLENDING."""
        self.slot.enter(stage)
        self._learn(learning.value)
        self.entered, self.dropped = step, 0
        if stage is Stage.BLENDING:
            self.blend_steps = blend_steps
        elif stage is Stage.DORMANT:
            # As before its first seed: when a slot was freed must not show.
            self.number = self.entered = self.blend_steps = 0
            self.gradient_norm = NOT_MEASURED
        self.stand_at(step)

    def _learn(self, learning: str) -> None:
        self.learning = learning
        self.slot.freeze(frozen=learning == Learning.FROZEN.value)

    def stand_at(self, step: int) -> None:
        """Step `step` is applied: set alpha for the next one, and put back what a frozen seed must keep."""
        if self.slot.is_frozen:
            self.slot.hold()
        if self.slot.stage is Stage.BLENDING:
            self.slot.set_alpha(alpha(step - self.entered, self.blend_steps))

    def state(self) -> dict[str, Any]:
        """Return the state, as plain data."""
        return {"stage": int(self.stage), "prefix": self.prefix, **{name: getattr(self, name) for name in _KEPT}}

    def load(self, state: dict[str, Any] | None, step: int) -> None:
        """Continue from what `state` returned, after step `step`. None: as at the beginning of a run.

        The slot must hold a seed if the stage needs one.
        """
        held = state or {}
        for name in _KEPT:
            setattr(self, name, held.get(name, getattr(type(self), name)))
        self.slot.enter(Stage(held.get("stage", Stage.DORMANT)))
        self._learn(self.learning)
        self.stand_at(step)
