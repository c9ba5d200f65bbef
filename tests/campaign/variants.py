"""The variants of a campaign's runs: one line for each, with its differences from a plain run.

Each variant has an undisturbed run of its own to be compared with. A new one is a new line; the campaign deals it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

TASKS = Path(__file__).parent / "task.py"
EPOCHS = 4
BATCHES = 8
# A campaign of so many runs or more is long: it has all variants, and starts more runs as a user does.
MANY_RUNS = 100


@dataclass(frozen=True)
class Order:
    """An order given while the run waits at the end of `epoch`, so that it always acts between the same two steps.

    Not before `kills` have happened, if so many are planned, and the next one can: it may be at what the order does.
    """

    epoch: int
    method: str
    parameters: dict[str, object] = field(hash=False)
    event: str
    kills: int = 0


@dataclass(frozen=True)
class Variant:
    """One kind of run.

    `task`: a class of task.py. `config`: lines of `tolaria:`. `steps`: updates in an epoch. `kills`: the most kills
    that have room in it. `keep`: of `tolaria.checkpoint`, which checkpoints stay. `in_memory`: a
    snapshot is taken at each step; a trainer that died continues from
    memory and repeats next to nothing. `begins_from`: words after `--from` and the checkpoint of another run.
    `is_long`: each of its starts takes many times as long as another's. `in_another`: another variant has all that is
    special in it, beside other things, so a short campaign leaves it out.
    """

    name: str
    config: str = ""
    keep: str = ""
    steps: int = BATCHES
    kills: int = EPOCHS
    in_memory: bool = False
    orders: tuple[Order, ...] = ()
    begins_from: tuple[str, ...] | None = None
    is_long: bool = False
    in_another: bool = False
    task: str = "Disturbed"

    def goes_back_after(self, kills: int) -> bool:
        """Return whether a rollback is ordered after so many kills."""
        return any(order.method == "Rollback" and order.kills == kills for order in self.orders)

    def removes_after(self, kills: int) -> bool:
        """Return whether a second checkpoint, after which the first is removed, is ordered after so many kills."""
        ordered = [order for order in self.orders if order.method == "Checkpoint" and order.kills == kills > 0]
        return bool(self.keep) and len(ordered) > 1


def _back(epoch: int) -> Order:
    """A rollback from the end of `epoch` to the start checkpoint, which always exists. The next kill may hit it."""
    return Order(epoch, "Rollback", {"epoch": 0, "reason": "once more"}, "RollbackRequested", epoch)


def _back_to_memory(epoch: int) -> Order:
    """A rollback from the end of `epoch` to the newest promoted snapshot, or by the full tier if there is none yet."""
    return Order(epoch, "Rollback", {"tier": "fast", "reason": "once more"}, "RollbackRequested", epoch)


def _copies(epoch: int) -> tuple[Order, Order]:
    """Two checkpoints at the end of `epoch`: after the second exists, the first need not be kept."""
    order = Order(epoch, "Checkpoint", {}, "CheckpointRequested", epoch)
    return order, order


CHECKPOINT = Order(2, "Checkpoint", {}, "CheckpointRequested")
BIASES = "{match: '*.bias', base_lr: 0.003}"
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("plain"),
        Variant("accumulate", "accumulate: 3", steps=3, in_another=True),
        Variant("bf16", "precision: bf16", in_another=True),
        # Two of eight batches overflow, the last of every epoch too, and once the scale it begins with is too large.
        Variant("fp16", "precision: fp16\n  task_options: {overflow: 4}", steps=BATCHES - 3),
        Variant("best", "keep_best: accuracy\n  stop: {hours: 9, patience: 4}", in_another=True),
        Variant("average", "ema: {decay: 0.9}", in_another=True),
        Variant("groups", f"optimizer: {{name: sgd, momentum: 0.9, groups: [{BIASES}]}}", in_another=True),
        Variant("cautious", "optimizer: {name: cautious_adamw}", in_another=True),
        Variant("no workers", "task_options: {workers: 0}", in_another=True),
        # All of these but SGD, which moves the head of "several updates".
        Variant(
            "many at once",
            f"accumulate: 3\n  precision: bf16\n  keep_best: accuracy\n  stop: {{hours: 9, patience: 4}}\n"
            f"  ema: {{decay: 0.9}}\n  optimizer: {{name: cautious_adamw, groups: [{BIASES}]}}\n"
            "  task_options: {workers: 0}",
            steps=3,
        ),
        Variant("ordered", orders=(CHECKPOINT,), in_another=True),
        # In the fourth epoch, so there is room for three kills before.
        Variant("stopped", "stop: {steps: 27}", kills=3),
        Variant("child", begins_from=("--with-optimizer",)),
        Variant("child by weights", "optimizer: {name: sgd, momentum: 0.9}", begins_from=(), is_long=True),
        # Without making machine code of the graphs, which is another half minute.
        Variant("compiled", "compile: true\n  task_options: {workers: 0, backend: eager}", is_long=True),
        Variant(
            "rates ordered",
            "optimizer: {groups: [{match: '*.bias', name: bias, policy: morpho_adaptive}]}",
            orders=(
                Order(1, "LrSet", {"group": "default", "value": 0.004, "reason": "lower"}, "OrderGiven"),
                Order(2, "LrSet", {"group": "bias", "value": 0.03, "policy": "constant"}, "OrderGiven"),
            ),
        ),
        Variant("gone back", orders=tuple(map(_back, (1, 2, 3)))),
        Variant("in memory", in_memory=True, in_another=True),
        Variant("average in memory", "ema: {decay: 0.9}", in_memory=True),
        Variant("gone back to memory", in_memory=True, orders=tuple(map(_back_to_memory, (1, 2, 3)))),
        Variant("several updates", orders=(CHECKPOINT,), task="Several"),
        # Wider in the first epoch, deeper at the end of the second, two optimizers; and back over these changes.
        Variant("grown", "ema: {decay: 0.9}", task="Growing", orders=tuple(map(_back, (1, 2, 3)))),
        Variant("removed", keep=", keep_last: 1, keep_days: 0", orders=(*_copies(1), *_copies(2), *_copies(3))),
        # Going back undoes the orders before it; those after it count.
        Variant(
            "rates gone back",
            orders=(
                Order(1, "LrSet", {"group": "default", "value": 0.004, "reason": "lower"}, "OrderGiven"),
                _back(2),
                Order(3, "LrSet", {"group": "default", "value": 0.02, "reason": "higher"}, "OrderGiven"),
            ),
        ),
    )
}


def variants_for(runs: int) -> list[Variant]:
    """Return the variants for a campaign of so many runs."""
    return [one for one in VARIANTS.values() if runs >= MANY_RUNS or not (one.is_long or one.in_another)]


def configuration(variant: Variant, sync: str) -> str:
    """Return the run's config.yaml."""
    memory = "snapshots: {every: 1, watch_steps: 1}" if variant.in_memory else "rollback: {fast_path_enabled: false}"
    return f"""\
tolaria:
  task: {TASKS}:{variant.task}
  rng_seed: 11
  epochs: {EPOCHS}
  torch_threads: 1
  determinism: strict
  checkpoint_interval_epochs: 1
  detect: {{act: false}}
  budgets: {{act: false}}
  checkpoint: {{min_gap_s: 0{variant.keep}}}
  journal: {{segment_bytes: 65536, sync: {sync}}}
  learning_rate: {{base_lr: 0.01, warmup_epochs: 1}}
  {memory}
  {variant.config}
"""
