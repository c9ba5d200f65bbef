"""Changes of the model's shape: the event and the report.

Promises: a change is data that the task's own code can repeat: a name and arguments as JSON.
"""

from typing import Annotated

from tolariad.core.calc.bounds import COUNT_MAX, NOTE_CHARACTERS_MAX, unit
from tolariad.core.calc.units import Epoch, Step
from tolariad.core.messages.base import Event, Report

ChangeName = Annotated[str, unit("", 1, 128)]
Arguments = Annotated[str, unit("a JSON object, its keys sorted", 2, NOTE_CHARACTERS_MAX)]
ChangeNumber = Annotated[int, unit("changes that the model had, this one included", 1, COUNT_MAX)]


class ArchitectureChanged(Event, frozen=True, kw_only=True):
    """The task's `grow` changed the model's shape, from update `applied_before_step` on.

    `epoch_ended`: the change was made after the validation of that epoch; 0: after a step. `parameters`: their number
    after the change.
    """

    number: ChangeNumber
    name: ChangeName
    arguments: Arguments
    applied_before_step: Step
    epoch_ended: Epoch = 0
    parameters: Annotated[int, unit("parameters", 0, COUNT_MAX)] = 0


class ArchitectureReport(Report, frozen=True, kw_only=True):
    """Fields as in ArchitectureChanged."""

    number: ChangeNumber
    name: ChangeName
    arguments: Arguments
    applied_before_step: Step
    epoch_ended: Epoch = 0
    parameters: Annotated[int, unit("parameters", 0, COUNT_MAX)] = 0
