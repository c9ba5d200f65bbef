"""A strategy of your own in one file: grow a seed on a plateau, and halve the learning rate on the next one."""

from __future__ import annotations

from typing import Any

from tolariad.leyline import (
    AdaptationCommand,
    CommandOptimizerAdjustment,
    CommandSeedOperation,
    CommandType,
    SeedLifecycleStage,
    SeedOperation,
    SystemStatePacket,
)


class GrowThenCalm:
    """Wait until the validation loss has not improved for `patience` epochs; then grow, or lower the rate."""

    patience = 4

    def __init__(self) -> None:
        self.best = float("inf")
        self.best_epoch = 0

    def step(self, packet: SystemStatePacket) -> AdaptationCommand:
        """Return what to change after this epoch. A command without a type changes nothing."""
        if packet.validation_loss < self.best:
            self.best, self.best_epoch = packet.validation_loss, packet.current_epoch
        command = AdaptationCommand(version=1, issued_by="grow_then_calm")
        if packet.current_epoch - self.best_epoch < self.patience:
            return command
        self.best_epoch = packet.current_epoch  # the next plateau begins here
        # A command that comes twice acts once, so its id names the run, its branch and the epoch.
        branch = packet.training_metrics.get("branch", 0.0)
        command.command_id = f"{packet.training_run_id}/{branch:g}/{packet.current_epoch}"
        command.annotations["reason"] = f"no better loss than {self.best:.4g} for {self.patience} epochs"
        free = [one for one in packet.seed_states if one.stage == SeedLifecycleStage.SEED_STAGE_DORMANT]
        if free:
            command.command_type = CommandType.COMMAND_SEED
            command.target_seed_id = min(free, key=lambda one: one.layer_depth).seed_id
            operation = CommandSeedOperation(operation=SeedOperation.SEED_OP_GERMINATE, blueprint_id="low_rank")
            command.seed_operation.CopyFrom(operation)
        else:
            command.command_type = CommandType.COMMAND_OPTIMIZER
            rates = {"lr": 0.5 * packet.training_metrics["learning_rate"]}
            command.optimizer_adjustment.CopyFrom(CommandOptimizerAdjustment(hyperparameters=rates))
        return command

    def state_dict(self) -> dict[str, Any]:
        """Return what to remember over a restart and a rollback: what JSON can hold."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what was remembered."""
        self.best, self.best_epoch = state["best"], state["best_epoch"]
