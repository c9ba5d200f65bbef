"""A LightningModule with automatic optimization as a task.

The module is the model; its loop is tolariad's: gates, skips, checkpoints, rollbacks and rates are as for every task.
Promises: with the same batches and random numbers its weights are those of Lightning's trainer, bit for bit. What
Lightning would call, and tolariad does not, is refused by its name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tolariad.core.calc.settings.optimization import LearningRate
from tolariad.trainer.errors import SetupRefused
from tolariad.trainer.lightning import optimizers
from tolariad.trainer.lightning.hooks import lightning_base, own_hooks
from tolariad.trainer.lightning.logged import LOSSES, Log
from tolariad.trainer.lightning.making import Parts, made
from tolariad.trainer.lightning.stand_in import StandIn, place_among
from tolariad.trainer.lr.configured import NO_LENGTH, Horizon
from tolariad.trainer.setup import ALONE
from tolariad.trainer.tasks.callbacks import OfEpochs

if TYPE_CHECKING:
    from array import array

    from tolariad.core.calc.learning_rate.schedule import GroupConfig
    from tolariad.core.calc.settings.model import Settings


_SAVED: Final = (int, float, bool, str, type(None))


class LightningTask(OfEpochs):
    """The task of one module. `parts` finds its class, and that of its data module."""

    def __init__(self, parts: Parts, source_hash: str) -> None:
        self._parts, self._source_hash = parts, source_hash
        # The module; where its data comes from, itself or a data module; and the hooks that each of them has itself.
        self._module: Any = None
        self._source: Any = None
        self._hooks: frozenset[str] = frozenset()
        self._source_hooks: frozenset[str] = frozenset()
        self._log = Log()
        self._trainer: StandIn
        self._training_step: Callable[[Any, int], Any]
        self._validation_step: Callable[[Any, int], Any]
        # What `evaluate` calls: the hooks of a validation, or of a test.
        self._kind = "validation"
        self._clip: tuple[float | None, str] = (None, "norm")
        self._place = ALONE
        self._accumulate, self._batches, self._validates = 1, 0, False
        self._configured: optimizers.Configured
        self._momenta: list[array[float] | None] = []
        # The position: finished epochs, computed batches of this one, updates. `_unended`: batches whose
        # on_train_batch_end is due. `_validated`: the batches of the validation that is under way, or None.
        self._epoch = self._batch = self._step = 0
        self._unended: list[tuple[dict[str, Any], Any, int]] = []
        self._validated: int | None = None
        self._monitor = ""
        self._built: dict[str, Any] = {}
        self.clip_gradients: Callable[[nn.Module], Tensor] | None = None

    # -- what the run is built of --------------------------------------------------------------------------------------

    def model(self, cfg: Settings) -> nn.Module:
        """Return the module, made with the hyper-parameters in task_options, after its `setup`."""
        _refuse_rates(cfg)
        found = made(self._parts, cfg.task_options)
        module, data = found.module, found.datamodule
        self._module, self._source, self._clip = module, module if data is None else data, found.clip
        self._accumulate = cfg.accumulate
        self._hooks, self._source_hooks = own_hooks(module), own_hooks(self._source)
        if not module.automatic_optimization:
            raise SetupRefused(
                f"{type(module).__name__} optimizes manually (automatic_optimization is False); write a task with "
                "optimizers(model) and training_step(model, batch, run), which calls run.update(name, loss)"
            )
        if cfg.compile and "forward" not in self._hooks:
            raise SetupRefused(f"compile is true, but {type(module).__name__} has no forward, which would be compiled")
        if self._accumulate > 1 and "on_after_backward" in self._hooks:
            raise SetupRefused("on_after_backward is called once a step, so accumulate must be 1")
        self._training_step, self._validation_step = map(_stepping, (module.training_step, module.validation_step))
        self._place = place_among(cfg.parallel.ranks)
        self._log.among(self._place.ranks)
        self._trainer = StandIn(
            max_epochs=cfg.epochs, accumulate=cfg.accumulate, clip=found.clip, datamodule=data, place=self._place
        )
        self._attach()
        for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
            if data is not None and name in self._source_hooks:
                getattr(data, name)(*arguments)
            self._call(name, *arguments)
        self._call("configure_model")
        self._attach()
        if self._clip[0] or self._hooks & {"on_after_backward", "on_before_optimizer_step"}:
            self.clip_gradients = self._clipped
        return module  # type: ignore[no-any-return]  # checked by `made`

    def _attach(self) -> None:
        """Let the module, and modules of Lightning inside it, log here and find the stand-in trainer."""
        self._module.trainer = self._source.trainer = self._trainer
        for one in self._module.modules():
            if lightning_base(type(one)) is not None:
                one.__dict__["log"] = self._log
            # Every rank evaluates all data, so the sum of all ranks would count each batch several times.
            if self._place.ranks > 1 and hasattr(one, "sync_on_compute"):
                one.__dict__["sync_on_compute"] = False

    def train_data(self, _cfg: Settings) -> Any:
        """Return the loader of the data module, else of the module."""
        found = _single(self._loader("train_dataloader"), "train_dataloader")
        if found is None:
            raise SetupRefused(
                f"{type(self._source).__name__} has no train_dataloader; give it one, or name a data module: "
                "task_options: {datamodule: MyData}"
            )
        try:
            self._batches = -(-len(found) // self._place.ranks)
        except TypeError:
            self._batches = 0
        self._trainer.move(num_training_batches=self._batches or math.inf)
        return found

    def val_data(self, _cfg: Settings) -> Any:
        """Return the same for the validation; None if the module has no validation_step."""
        if "validation_step" not in self._hooks:
            return None
        found = _single(self._loader("val_dataloader"), "val_dataloader")
        self._validates = found is not None
        return found

    def test_data(self, _cfg: Settings) -> Any:  # noqa: PT019 - this is no test
        """Return the loader of test_dataloader, after `setup("test")`; from then on `evaluate` calls test_step.

        None if there is no such loader: then the test uses the data of the validation.
        """
        if "test_dataloader" not in self._source_hooks:
            return None
        if "test_step" not in self._hooks:
            raise SetupRefused(f"there is a test_dataloader, but {type(self._module).__name__} has no test_step")
        if self._source is not self._module and "setup" in self._source_hooks:
            self._source.setup("test")
        self._call("setup", "test")
        found = _single(self._loader("test_dataloader"), "test_dataloader")
        if found is not None:
            self._kind, self._validation_step = "test", _stepping(self._module.test_step)
        return found

    def _loader(self, name: str) -> Any:
        return getattr(self._source, name)() if name in self._source_hooks else None

    def optimizer(self, _model: nn.Module, _cfg: Settings) -> torch.optim.Optimizer:
        """Return the optimizer of configure_optimizers."""
        self._log.at("configure_optimizers")
        self._configured = optimizers.read(self._module.configure_optimizers())
        self._trainer.move(optimizers=[self._configured.optimizer])
        self._built = self._attributes()
        self._call("on_fit_start")
        self._call("on_train_start")
        return self._configured.optimizer

    def schedules(self, horizon: Horizon) -> list[GroupConfig]:
        """Return the schedule of each group, without its name."""
        configured = self._configured
        plateaus = [one for one in configured.schedulers if hasattr(one.scheduler, "num_bad_epochs")]
        if plateaus:
            if len(configured.schedulers) > 1:
                raise SetupRefused("ReduceLROnPlateau beside another scheduler is not supported; keep one of them")
            if not self._validates:
                raise SetupRefused("ReduceLROnPlateau needs a validation: a validation_step and a val_dataloader")
            self._monitor = str(plateaus[0].monitor)
            return optimizers.plateau_configs(plateaus[0], LOSSES)
        if horizon.total_steps is None or horizon.steps_per_epoch is None:
            raise SetupRefused(NO_LENGTH.format("the rates of configure_optimizers are"))
        lengths = optimizers.Lengths(horizon.total_steps, horizon.steps_per_epoch, self._batches, self._accumulate)
        tables = optimizers.tabulate(configured, lengths)
        self._momenta = tables.momenta
        return optimizers.configs(configured, tables, self._source_hash)

    # -- a step --------------------------------------------------------------------------------------------------------

    def loss(self, _model: nn.Module, batch: Any) -> Tensor | dict[str, Any]:
        """Return the loss of training_step, with what it logs."""
        module, index = self._module, self._batch
        self._validated = None
        self._trainer.move(validating=False)
        if index == 0:
            self._call("on_train_epoch_start")
        # Left over from a step that was skipped: a step has no more batches than this.
        if len(self._unended) >= self._accumulate:
            self._unended = []
        self._end_batches()
        batch = self._transferred(batch)
        logged = self._log.at("training_step", "step")
        if "on_train_batch_start" in self._hooks and module.on_train_batch_start(batch, index) == -1:
            raise SetupRefused("on_train_batch_start returns -1, which would skip the rest of the epoch: not supported")
        found = self._training_step(batch, index)
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if loss is None:
            raise SetupRefused(
                "training_step returns no loss; in Lightning the batch is then skipped, which tolariad does not support"
            )
        self._log.at("the code after training_step")
        self._batch += 1
        if "on_train_batch_end" in self._hooks:
            extra = dict(found) if isinstance(found, Mapping) else {}
            self._unended.append(({**extra, "loss": loss.detach().clone()}, batch, index))
        return {**logged, "loss": loss} if logged else loss

    def _end_batches(self) -> None:
        """Call on_train_batch_end for the batches that have ended."""
        ended, self._unended = self._unended, []
        for outputs, batch, index in ended:
            self._call("on_train_batch_end", outputs, batch, index)

    def _clipped(self, _model: nn.Module) -> Tensor:
        """Call the hooks between backward pass and update, and clip. Return the norm before clipping."""
        self._call("on_after_backward")
        optimizer = self._configured.optimizer
        self._call("on_before_optimizer_step", optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        limit, how = self._clip
        if limit and how == "norm":
            return nn.utils.clip_grad_norm_(parameters, limit)
        norm = nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
        if limit:
            nn.utils.clip_grad_value_(parameters, limit)
        return norm

    def on_step_end(self, _model: nn.Module, step: int) -> None:
        """Count the update, end its batches, and set the momentum of the next one."""
        self._step = step
        self._trainer.move(global_step=step)
        self._end_batches()
        self._set_momenta()

    def _set_momenta(self) -> None:
        groups = self._configured.optimizer.param_groups
        for group, values in zip(groups, self._momenta, strict=False):
            if values is not None:
                optimizers.set_momentum(group, values[min(self._step, len(values) - 1)])

    def on_epoch_end(self, _model: nn.Module, epoch: int, _metrics: dict[str, float]) -> None:
        """End the epoch. It is counted after its last hook."""
        self._unended = []
        self._trainer.move(validating=False)
        self._call("on_train_epoch_end")
        self.of_epoch = self._log.end_epoch(self._module)
        self._move_to(epoch, 0, self._step)

    def _move_to(self, epoch: int, batch: int, step: int) -> None:
        self._epoch, self._batch, self._step = epoch, batch, step
        self._trainer.move(current_epoch=epoch, global_step=step)

    # -- a validation --------------------------------------------------------------------------------------------------

    def evaluate(self, _model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return what validation_step logs, or test_step, as means; its `val_loss` is tolariad's `loss`."""
        module, kind = self._module, self._kind
        if self._validated is None:
            self._validated = 0
            self._log.begin_validation()
            self._trainer.move(validating=True)
            self._call(f"on_{kind}_start")
            self._call(f"on_{kind}_epoch_start")
        index, self._validated = self._validated, self._validated + 1
        batch = self._transferred(batch)
        logged = self._log.at(f"{kind}_step", "batch")
        if f"on_{kind}_batch_start" in self._hooks:
            getattr(module, f"on_{kind}_batch_start")(batch, index)
        found = self._validation_step(batch, index)
        if f"on_{kind}_batch_end" in self._hooks:
            getattr(module, f"on_{kind}_batch_end")(found, batch, index)
        returned = found.get("loss") if isinstance(found, Mapping) else found
        if isinstance(returned, Tensor) and not any(name in logged for name in LOSSES):
            logged["loss"] = returned
        return self._with_loss(logged)

    def on_validation_end(self, _model: nn.Module) -> dict[str, float]:
        """Call the last hooks of a validation, or of a test. Return what stands for all of it."""
        last = f"on_{self._kind}_epoch_end"
        logged = self._log.at(last, "whole")
        if last in self._hooks:
            getattr(self._module, last)()
        found = self._with_loss(self._log.end_validation(logged))
        self._call(f"on_{self._kind}_end")
        self._validated = None
        self._trainer.move(validating=False)
        return found

    def _with_loss(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return the results with the loss of the validation under tolariad's name for it."""
        name = next((one for one in (self._monitor, *LOSSES) if one in results), None)
        return {"loss" if key == name else key: value for key, value in results.items()}

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the plain attributes of the module that changed, and what its own hooks save."""
        checkpoint: dict[str, Any] = {"epoch": self._epoch, "global_step": self._step}
        self._call("on_save_checkpoint", checkpoint)
        state = {"at": [self._epoch, self._batch, self._step], "checkpoint": checkpoint, "changed": self._changed()}
        if metrics := self._log.state(self._module):
            state["metrics"] = metrics
        if self._source is not self._module and "state_dict" in self._source_hooks:
            state["data"] = self._source.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._unended, self._validated = [], None
        self._move_to(*state["at"])
        self._log.load_state(self._module, state.get("metrics", []))
        for name, value in {**self._built, **state["changed"]}.items():
            setattr(self._module, name, value)
        self._call("on_load_checkpoint", dict(state["checkpoint"]))
        if "data" in state and "load_state_dict" in self._source_hooks:
            self._source.load_state_dict(state["data"])
        self._set_momenta()

    def _attributes(self) -> dict[str, Any]:
        """Return the numbers, flags and texts that the module holds as attributes of its own."""
        names = vars(self._module).items()
        return {name: value for name, value in names if type(value) in _SAVED and name[0] != "_" and name != "training"}

    def _changed(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self._attributes().items()
            if name not in self._built or self._built[name] != value
        }

    # -- inside --------------------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a hook of the module, if it has it itself. It may not log."""
        if name in self._hooks:
            self._log.at(name)
            getattr(self._module, name)(*arguments)

    def _transferred(self, batch: Any) -> Any:
        """Return the batch after the hook that follows its transfer to the device."""
        for owner, hooks in ((self._source, self._source_hooks), (self._module, self._hooks)):
            if "on_after_batch_transfer" in hooks:
                return owner.on_after_batch_transfer(batch, 0)
        return batch


class _Batches:
    """Data that yields batches, as Lightning takes it: a list of batches is no data set of samples."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


def _stepping(step: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """Return the step as a function of the batch and its index, which it may leave out."""
    parameters = inspect.signature(step).parameters
    if "dataloader_iter" in parameters:
        raise SetupRefused("a step that takes dataloader_iter is not supported; take (batch, batch_idx)")
    return step if len(parameters) > 1 else lambda batch, _: step(batch)


def _single(found: Any, name: str) -> Any:
    """Return the only loader. Raises SetupRefused if there are several."""
    if isinstance(found, (list, tuple)):
        if len(found) > 1:
            raise SetupRefused(f"{name} returns {len(found)} loaders; one is supported: join the data sets")
        return found[0] if found else None
    if isinstance(found, Mapping) or type(found).__name__ == "CombinedLoader":
        raise SetupRefused(f"{name} returns loaders by name; one is supported: join the data sets")
    return found if found is None or isinstance(found, DataLoader) else _Batches(found)


def _refuse_rates(cfg: Settings) -> None:
    """Raise SetupRefused for rates of the configuration: the module's own are used."""
    given, default = cfg.learning_rate, LearningRate()
    if given.policy != "constant":
        key, value = "policy", given.policy
    elif given.base_lr != default.base_lr:
        key, value = "base_lr", f"{given.base_lr:g}"
    else:
        return
    raise SetupRefused(
        f"learning_rate.{key} is {value}, but the rates of a LightningModule are those of its configure_optimizers. "
        "Remove the key, and give the module its rate as a hyper-parameter: task_options: {lr: ...}"
    )
