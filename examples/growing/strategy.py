"""A strategy of your own that grows: one slot after the other, and a seed stays only if the loss is better with it."""

from __future__ import annotations

from typing import Any

from tolariad.leyline import (
    AdaptationCommand,
    CommandSeedOperation,
    CommandType,
    SeedLifecycleStage,
    SeedOperation,
    SeedState,
    SystemStatePacket,
)

# Stage: epochs to wait in it, and the operation that comes next. The gates of the run have the last word.
PLAN = {
    SeedLifecycleStage.SEED_STAGE_GERMINATED: (0, SeedOperation.SEED_OP_START_TRAINING),
    SeedLifecycleStage.SEED_STAGE_TRAINING: (2, SeedOperation.SEED_OP_START_GRAFTING),
    SeedLifecycleStage.SEED_STAGE_BLENDING: (0, SeedOperation.SEED_OP_STABILIZE),
    SeedLifecycleStage.SEED_STAGE_SHADOWING: (1, SeedOperation.SEED_OP_EVALUATE),
    SeedLifecycleStage.SEED_STAGE_PROBATIONARY: (2, SeedOperation.SEED_OP_FOSSILIZE),
}


class OneByOne:
    """Begin after `first` epochs. Try each slot once, from the input on."""

    first = 4

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.loss_before = 0.0
        self.stage = 0
        self.since = 0

    def step(self, packet: SystemStatePacket) -> AdaptationCommand:
        """Return what to change after this epoch. A command without a type changes nothing."""
        slots = sorted(packet.seed_states, key=lambda one: one.layer_depth)
        grows = next((one for one in slots if one.stage in PLAN), None)
        if grows is not None:
            return self.move_on(packet, grows)
        self.stage = 0
        free = [one for one in slots if one.seed_id not in self.tried]
        if not free or packet.current_epoch < self.first:
            return AdaptationCommand(version=1)
        self.tried.append(free[0].seed_id)
        self.loss_before = packet.validation_loss
        reason = f"slot {len(self.tried)} of {len(slots)}, loss {packet.validation_loss:.4g}"
        return command(packet, free[0], SeedOperation.SEED_OP_GERMINATE, reason, "Widening")

    def move_on(self, packet: SystemStatePacket, seed: SeedState) -> AdaptationCommand:
        """Move the seed to its next stage, or cull it at the end of its trial if the loss is not better."""
        if seed.stage != self.stage:
            self.stage, self.since = seed.stage, packet.current_epoch
        wait, operation = PLAN[seed.stage]
        waited = packet.current_epoch - self.since
        is_blending = seed.stage == SeedLifecycleStage.SEED_STAGE_BLENDING and seed.metrics["alpha"] < 1.0
        if is_blending or waited < wait:
            return AdaptationCommand(version=1)
        reason = f"loss {packet.validation_loss:.4g}, before the seed {self.loss_before:.4g}"
        # Asked for a second time: the run has refused to keep a seed that helps no more than chance.
        was_refused = waited > wait
        if operation == SeedOperation.SEED_OP_FOSSILIZE and (
            was_refused or not packet.validation_loss < self.loss_before
        ):
            operation = SeedOperation.SEED_OP_CULL
        return command(packet, seed, operation, reason)

    def state_dict(self) -> dict[str, Any]:
        """Return what to remember over a restart and a rollback: what JSON can hold."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what was remembered."""
        vars(self).update(state)


def command(
    packet: SystemStatePacket, seed: SeedState, operation: Any, reason: str, blueprint: str = ""
) -> AdaptationCommand:
    """Return the command for this seed. Its id names the run, its branch and the epoch, so that it acts once."""
    branch = packet.training_metrics.get("branch", 0.0)
    return AdaptationCommand(
        version=1,
        command_id=f"{packet.training_run_id}/{branch:g}/{packet.current_epoch}",
        issued_by="one_by_one",
        command_type=CommandType.COMMAND_SEED,
        target_seed_id=seed.seed_id,
        seed_operation=CommandSeedOperation(operation=operation, blueprint_id=blueprint),
        annotations={"reason": reason},
    )
