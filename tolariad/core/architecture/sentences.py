"""The sentence for a change of the model's shape."""

from __future__ import annotations

from typing import Final

from tolariad.core.architecture import words as arch
from tolariad.core.text.giver_sentences import Sentences


def _changed(e: arch.ArchitectureChanged) -> str:
    called = f"{e.name} {e.arguments}" if len(e.arguments) <= 60 else e.name
    return f"The model has another shape from step {e.applied_before_step} on: {called}; {e.parameters} parameters."


SENTENCES: Final[Sentences] = {
    arch.ArchitectureChanged: _changed,
}
