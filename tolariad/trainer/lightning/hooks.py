"""The hooks of a LightningModule and of a LightningDataModule: which are called, which are refused, and why.

Promises: a hook that the user overrides is called, refused by its name, or belongs to something that is no training,
such as `predict_step`. Of a newer Lightning, a hook that is not known here is refused too.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final

from tolariad.trainer.errors import SetupRefused

_PACKAGES: Final = ("lightning", "pytorch_lightning")

CALLED: Final = frozenset(
    {
        *("forward", "training_step", "validation_step", "configure_optimizers", "configure_model"),
        *("prepare_data", "setup", "train_dataloader", "val_dataloader", "on_after_batch_transfer"),
        *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end"),
        *("on_train_batch_start", "on_train_batch_end", "on_after_backward", "on_before_optimizer_step"),
        *("on_validation_start", "on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end"),
        *("on_validation_epoch_end", "on_validation_end"),
        # By `tolariad test`.
        *("test_step", "test_dataloader", "on_test_start", "on_test_end", "on_test_epoch_start", "on_test_epoch_end"),
        *("on_test_batch_start", "on_test_batch_end"),
        *("on_save_checkpoint", "on_load_checkpoint", "state_dict", "load_state_dict"),
    }
)
# Not part of a training or a test: predictions, exports, and what the module's own code calls.
ELSEWHERE: Final = frozenset(
    {
        *("predict_step", "predict_dataloader", "load_from_checkpoint", "on_test_model_eval", "on_test_model_train"),
        *("on_predict_start", "on_predict_end", "on_predict_epoch_start", "on_predict_epoch_end"),
        *("on_predict_batch_start", "on_predict_batch_end", "on_predict_model_eval"),
        *("to_onnx", "to_torchscript", "to_tensorrt", "freeze", "unfreeze", "print", "from_datasets", "teardown"),
        *("save_hyperparameters", "remove_ignored_hparams", "all_gather", "on_exception"),
        *("to", "cuda", "cpu", "type", "float", "double", "half"),
    }
)
_THE_TRAINER = "the rates and updates are tolariad's"
_MODES = "tolariad sets eval mode before a validation, and afterwards each module's own mode"
_PROCESS = "the process of a training may end at any time and start again; use on_train_epoch_end, or a checkpoint"
REFUSED: Final = {
    "backward": f"{_THE_TRAINER}; for passes of your own write a task with training_step(model, batch, run)",
    "manual_backward": "it belongs to manual optimization; write a task with training_step(model, batch, run)",
    "toggle_optimizer": "it belongs to manual optimization; write a task with training_step(model, batch, run)",
    "untoggle_optimizer": "it belongs to manual optimization; write a task with training_step(model, batch, run)",
    "toggled_optimizer": "it belongs to manual optimization; write a task with training_step(model, batch, run)",
    "optimizer_step": f"{_THE_TRAINER}; put a warm-up into a scheduler of configure_optimizers",
    "optimizer_zero_grad": f"{_THE_TRAINER}; gradients are set to None after each update",
    "lr_scheduler_step": f"{_THE_TRAINER}; give a scheduler of torch, such as LambdaLR",
    "optimizers": f"{_THE_TRAINER}",
    "lr_schedulers": f"{_THE_TRAINER}",
    "configure_gradient_clipping": "set task_options.gradient_clip_val and task_options.gradient_clip_algorithm",
    "clip_gradients": "set task_options.gradient_clip_val and task_options.gradient_clip_algorithm",
    "on_before_zero_grad": "use on_train_batch_end, which is called after the update and before the gradients go",
    "on_before_backward": "change the loss in training_step",
    "on_before_batch_transfer": "use the loader's collate_fn, or on_after_batch_transfer",
    "transfer_batch_to_device": "tolariad moves tensors, and objects with a method `to`; use on_after_batch_transfer",
    "configure_callbacks": "callbacks are not called; move what they do into the module's hooks",
    "configure_sharded_model": "one process trains; use configure_model",
    "on_train_end": _PROCESS,
    "on_fit_end": _PROCESS,
    "on_validation_model_eval": _MODES,
    "on_validation_model_train": _MODES,
    "on_validation_model_zero_grad": _MODES,
    "log": "tolariad records what is logged; give the method another name",
    "log_dict": "tolariad records what is logged; give the method another name",
}


def lightning_base(kind: type, name: str = "LightningModule") -> type | None:
    """Return Lightning's own class among the bases of `kind`, of either of its packages; None without one."""
    of_lightning = (one for one in kind.__mro__ if one.__name__ == name and _is_lightnings(one))
    return next(of_lightning, None)


def _is_lightnings(kind: type) -> bool:
    return kind.__module__.split(".")[0] in _PACKAGES


def hooks_of(base: type) -> dict[str, Any]:
    """Return the public methods of Lightning's class, without those that torch's Module gives it."""
    return {
        name: one
        for kind in reversed(base.__mro__)
        if _is_lightnings(kind)
        for name, one in vars(kind).items()
        if not name.startswith("_") and isinstance(getattr(one, "__func__", one), FunctionType)
    }


def own_hooks(owner: Any) -> frozenset[str]:
    """Return the hooks that a module or data module has itself: by its class, or as an attribute.

    Raises SetupRefused, with the name and what to do, if one of them would not be called.
    """
    kind = type(owner)
    base = lightning_base(kind) or lightning_base(kind, "LightningDataModule") or kind
    own = frozenset(name for name in hooks_of(base) if _function(owner, name) is not _function(base, name))
    for name in sorted(own - CALLED - ELSEWHERE):
        why = REFUSED.get(name, "tolariad does not know this hook")
        raise SetupRefused(f"{kind.__name__}.{name} is overridden, but tolariad does not call it: {why}")
    return own


def _function(owner: Any, name: str) -> Any:
    found = getattr(owner, name, None)
    return getattr(found, "__func__", found)
