"""Tolaria, in a program of one's own: the daemon's kernel, journal and trainer in one process, without its loop.

    from tolariad import Tolaria
    result = Tolaria({"tolaria": {"epochs": 3}}).train(model, train_loader, val_loader, epochs=3)

Training runs in the thread that calls `train`, recording in the kernel's own thread. A program that is killed and started
again goes on where it was, bit for bit. ^C, and a notebook's stop button, end at the next step boundary with a checkpoint.

Promises: what the daemon promises of P1 to P3; the program's signal handlers, random state and torch's switches are given
back as they were. It must not know: any rule of a run (core decides), asyncio. One run at a time in a process: random
numbers and torch's switches are the process's.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from tolariad import config as reading
from tolariad.core.settings.model import Settings
from tolariad.core.state import RunState
from tolariad.daemon.request import RunRequest
from tolariad.library.live import Live
from tolariad.storage import copy_checkpoint
from tolariad.trainer.data.randomness import preserved_rng
from tolariad.trainer.process.determinism import lent
from tolariad.trainer.tasks.given import GivenTask
from tolariad.trainer.tasks.task import GIVEN

if TYPE_CHECKING:
    import torch
    from torch import nn

_busy: Final = threading.Lock()


class TrainingResult(msgspec.Struct, frozen=True):
    """How a run stands when `train` returns: phase `completed` or `stopped`, the last validation's metrics."""

    run_dir: Path
    phase: str
    epochs: int
    steps: int
    metrics: dict[str, float]
    last_checkpoint: str | None


class Tolaria:
    """Training under the recorder. Synchronous; `train` may be called again, and goes on or says that it is complete.

    `config`: a mapping or a YAML file with the key `tolaria`, or `Settings`. `run_dir`: the run's folder, by default
    `./runs/` and the file's name. `accept_config`: an existing run goes on under a configuration that differs from its own.
    Raises ConfigError where the configuration is wrong.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Path | Settings | None = None,
        *,
        run_dir: str | Path | None = None,
        accept_config: bool = False,
    ) -> None:
        self._source = Path(config) if isinstance(config, str | Path) else None
        self._settings = config if isinstance(config, Settings) else reading.load(config or {"tolaria": {}})
        name = self._source.stem if self._source else "library"
        self.run_dir = Path(run_dir) if run_dir is not None else Path("runs") / name
        self._accept_config = accept_config
        self._live: Live | None = None
        self._state = RunState()

    def train(
        self,
        model: nn.Module,
        train_loader: Any,
        val_loader: Any,
        epochs: int,
        *,
        task: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> TrainingResult:
        """Train to the end of `epochs`, or until stopped; `model` then has the run's parameters.

        The loaders are DataLoaders, datasets or tuples of tensors (`val_loader` may be None). `task` may have any of the
        methods of `tolariad.Task` but `model` and the data: `loss`, `evaluate`, hooks; without it batches are pairs
        (inputs, targets). `optimizer` is built by the program, else by the configuration; its rates are the controller's.

        Raises SetupRefused or StartRefused (nothing was begun), RunFailed, or what a hook or the model raised: a run that
        ended so goes on from its last durable step when `train` is called again.
        """
        given = GivenTask(model, train_loader, val_loader, task=task, optimizer=optimizer)
        settings = replace(self._settings, epochs=epochs, task=self._settings.task or GIVEN)
        request = RunRequest(
            run_dir=self.run_dir, config=self._source, settings=settings, accept_config=self._accept_config
        )
        if not _busy.acquire(blocking=False):
            raise RuntimeError("another Tolaria.train runs in this process; random numbers can serve only one")
        try:
            with _signals_given_back() as hear, preserved_rng(), lent():
                self._live = live = Live.open(request, given)
                try:
                    live.run(hear)
                finally:
                    self._state, self._live = live.state, None
        finally:
            _busy.release()
        return self._result()

    def _result(self) -> TrainingResult:
        state = self._state
        newest = state.checkpoints.newest
        return TrainingResult(
            run_dir=self.run_dir,
            phase=state.run.phase.value,
            epochs=state.progress.epoch_finished,
            steps=state.progress.step,
            metrics=dict(state.progress.metrics),
            last_checkpoint=newest.id if newest else None,
        )

    def checkpoint(self, path: str | Path) -> bool:
        """A committed checkpoint, copied to the new folder `path`; False where there is none or it was refused.

        During `train` from another thread: takes one at the next boundary and waits for it. From a hook, in the training
        thread itself: True when it is ordered; it is taken at the boundary that follows, and copied once committed.
        """
        live, target = self._live, Path(path)
        if live is not None:
            return live.checkpoint(target)
        newest = self._state.checkpoints.newest
        if newest is None:
            return False
        copy_checkpoint(self.run_dir / "checkpoints" / newest.id, newest.manifest, target)
        return True

    def rollback(self, checkpoint_epoch: int) -> bool:
        """Go back to the newest checkpoint at or before the end of `checkpoint_epoch`; False where there is none.

        During `train`, from a hook or another thread: True when it is ordered, durably; it takes effect at the next
        boundary, and what was trained behind the checkpoint stays in the journal as a branch that was left.
        """
        return self._live.rollback(checkpoint_epoch) if self._live is not None else False

    def get_metrics(self) -> dict[str, float]:
        """The last durable step's figures, and the last validation's with `val_` before their names."""
        state = self._live.state if self._live is not None else self._state
        progress = state.progress
        found: dict[str, float | None] = {
            "step": float(progress.step),
            "epoch": float(progress.epoch),
            "loss": progress.loss,
            "grad_norm": progress.grad_norm,
            "lr": progress.lr,
            "train_loss": progress.train_loss,
            **{f"val_{name}": value for name, value in progress.metrics.items()},
        }
        return {name: value for name, value in found.items() if value is not None}


@contextmanager
def _signals_given_back() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Within the block ^C does what it is told to, once; a second one is a KeyboardInterrupt. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    before = signal.getsignal(signal.SIGINT)

    def hear(stop: Callable[[], None]) -> None:
        def first(_number: int, _frame: Any) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            stop()

        signal.signal(signal.SIGINT, first)

    try:
        yield hear
    finally:
        signal.signal(signal.SIGINT, before)
