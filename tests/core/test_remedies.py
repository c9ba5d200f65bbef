"""What a failure tells the user to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.simulate import World, environment, until
from tests.core.test_lifecycle import rerun_that_differs


@pytest.mark.parametrize("task", ["digits", "given"])
def test_the_causes_are_in_the_words_of_who_trains(task):
    """What a program's loop changes, it keeps by a call; a task has a `state_dict`. Neither gets the other's remedy."""
    world = World(0)
    world.environment = environment(determinism="strict")
    until(world, 6)
    world.state = replace(world.state, run=replace(world.state.run, task=task))
    rerun_that_differs(world)
    world.run()
    assert ("run.keep(name, object)" in world.state.run.why) == (task == "given")
    assert "--" not in world.state.run.why
