"""A part of the daemon that is made at its first use: its imports take time, and must not stop the loop.

Promises: uses keep their order. A part that cannot be made ends nothing but its uses. `close` ends what was begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

_log: Final = logging.getLogger(__name__)


class Part(Protocol):
    """Anything that can be closed."""

    async def close(self) -> None:
        """End everything that it started."""


T = TypeVar("T", bound=Part)


class Lazy(Generic[T]):
    """Belongs to one event loop. `what`: the part's name, where a sentence begins."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]], what: str) -> None:
        self._make = make
        self._what = what
        self._part: asyncio.Task[T] | None = None
        self._uses: set[asyncio.Task[None]] = set()

    def started(self) -> asyncio.Task[T]:
        """Begin to make the part, if nobody did, and return the task of it. Shield it before you await it."""
        if self._part is None:
            self._part = asyncio.create_task(self._make())
        return self._part

    def use(self, call: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Call `call` with the part when it is made; if it cannot be, `failed` while the exception is handled."""
        task = asyncio.create_task(self._use(self.started(), call, failed))
        # The loop itself holds a task only weakly.
        self._uses.add(task)
        task.add_done_callback(self._uses.discard)

    @staticmethod
    async def _use(part: asyncio.Task[T], call: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        try:
            found = await asyncio.shield(part)
        except Exception as error:  # noqa: BLE001 - the run goes on without the part
            failed(error)
            return
        call(found)

    async def close(self) -> None:
        """End the part, and drop the uses that wait for it."""
        for task in tuple(self._uses):
            task.cancel()
        if self._part is None:
            return
        try:
            await (await self._part).close()
        except Exception:  # noqa: BLE001 - the daemon must leave in any case
            _log.exception("%s was not ended in order", self._what)
