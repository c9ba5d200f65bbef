"""The strategy of the examples: its configuration loads, it decides as it says, and the page shows it whole."""

from __future__ import annotations

import math
import os
from pathlib import Path

from tests.strategy.packets import packet, seed
from tolariad.config import load
from tolariad.leyline import CommandType, SeedLifecycleStage, check_command
from tolariad.strategy import answer_of, find_strategy, read_commands
from tolariad.strategy.process.child import StrategyLimits, StrategySetup
from tolariad.strategy.process.strategist import Strategist

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "strategy"


async def test_the_example_decides_in_its_own_process():
    """A plateau of four epochs grows a seed, the next one lowers the rate; it goes on after a restore."""
    name = load(FOLDER / "config.yaml").strategy
    assert name == f"{FOLDER}/strategy.py:GrowThenCalm"
    limits = StrategyLimits(answer_s=30.0)
    strategist = Strategist(StrategySetup(strategy=name, environment=dict(os.environ), limits=limits))
    free, grown = [seed("a")], [seed("a", SeedLifecycleStage.SEED_STAGE_TRAINING)]
    answers = [await strategist.ask(packet(n, 1.0, free if n <= 5 else grown), n) for n in range(1, 10)]
    strategist.restore(answers[3].state)
    again = await strategist.ask(packet(5, 1.0, free), 10)
    await strategist.close()

    assert [one.fallback for one in answers] == [""] * 9
    assert {n: one.commands[0].command_type for n, one in enumerate(answers, 1) if one.commands} == {
        5: CommandType.COMMAND_SEED,
        9: CommandType.COMMAND_OPTIMIZER,
    }
    assert again.commands == answers[4].commands


def test_the_examples_answers_are_valid_for_any_loss():
    """Also for one that is not finite."""
    strategy, _ = find_strategy(f"{FOLDER}/strategy.py:GrowThenCalm")
    for epoch, loss in enumerate([math.nan, 1.0, math.inf, math.nan, -1.0, *[math.nan] * 6], 1):
        asked = packet(epoch, loss, [seed("a"), seed("b", depth=4)])
        assert all(check_command(one).does for one in read_commands(answer_of(strategy, asked)))


def test_the_page_shows_the_example_whole():
    """The code on the page is the code that runs here."""
    page = (ROOT / "docs" / "strategy.md").read_text(encoding="utf-8")
    assert f"```python\n{(FOLDER / 'strategy.py').read_text(encoding='utf-8')}```\n" in page
