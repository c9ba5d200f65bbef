"""The sentence for a change of the model's shape."""

from __future__ import annotations

from typing import Final

from tolariad.core import messages as m
from tolariad.core.messages.sentences.givers import Sentences


def _changed(e: m.ArchitectureChanged) -> str:
    called = f"{e.name} {e.arguments}" if len(e.arguments) <= 60 else e.name
    return f"The model has another shape from step {e.applied_before_step} on: {called}; {e.parameters} parameters."


SENTENCES: Final[Sentences] = {
    m.ArchitectureChanged: _changed,
}
