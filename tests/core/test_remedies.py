"""What a failure tells the user to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.simulate import World, environment, until
from tests.core.test_lifecycle import rerun_that_differs


@pytest.mark.parametrize(("task", "says"), [("digits", "start with --retry"), ("given", "start the program again")])
def test_the_remedy_is_in_the_words_of_who_trains(task, says):
    """A program has no command line, and what a loop changes it keeps."""
    world = World(0)
    world.environment = environment(determinism="strict")
    until(world, 6)
    world.state = replace(world.state, run=replace(world.state.run, task=task))
    rerun_that_differs(world)
    world.run()
    assert says in world.state.run.why
    assert ("--" in world.state.run.why, "run.keep(name, object)" in world.state.run.why) == (
        task == "digits",
        task == "given",
    )
