"""The daemon's end of the strategy: a fault of it reaches neither the run nor the end of the daemon."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tests.core.strategy.asked import StrategyWorld
from tolariad.core import messages as m
from tolariad.core.calc.settings.model import Settings
from tolariad.daemon import strategy
from tolariad.daemon.strategy import Asking

QUESTION = m.AskStrategy(epoch=1, generation=1, state=b"", limit_s=2.0)


async def test_a_question_is_answered_by_the_default_policy():
    """From the effect to the input; the packet was made of the durable state."""
    replies: asyncio.Queue[m.StrategyReply] = asyncio.Queue()
    world = StrategyWorld(0).until_asked()
    found = Asking(replace(Settings(), strategy="default"), (), replies.put_nowait)
    found.prepare(world.state)
    found.obey(QUESTION, world.state)
    reply = await asyncio.wait_for(replies.get(), 60.0)
    await found.close()

    assert (reply.generation, reply.fallback) == (1, "")
    assert reply.packet_bytes > 100
    assert reply.spans.answer > 0


async def test_a_strategy_that_cannot_be_made_ends_nothing(monkeypatch):
    """The kernel ends the question by its deadline; the daemon leaves as always."""

    def broken(*_):
        raise RuntimeError("no strategy today")

    monkeypatch.setattr(strategy, "_asker", broken)
    replies: list[m.StrategyReply] = []
    world = StrategyWorld(0).until_asked()
    found = Asking(replace(Settings(), strategy="default"), (), replies.append)
    found.obey(QUESTION, world.state)
    await asyncio.sleep(0.05)
    await asyncio.wait_for(found.close(), 60.0)
    assert replies == []


async def test_a_run_without_a_strategy_starts_nothing():
    """Neither at its start nor at its end."""
    found = Asking(Settings(), (), lambda _: None)
    found.prepare(StrategyWorld(0, strategy="none").state)
    assert found._asker._part is None
    await found.close()
