"""The words of `why` for what loss and gradient norm did around an unusual step, and which checkpoints stand there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tolariad.cli.output import counted
from tolariad.core.calc.text.plain import safe
from tolariad.forensics.why import Answer

_LABEL: Final = 9


def level_lines(answer: Answer) -> Iterator[str]:
    """Yield what was before the step and what came after it; nothing for an event that is no unusual step."""
    if (level := answer.level) is not None:
        norm = f", gradient norm {level.grad_norm:.4g}" if level.grad_norm is not None else ""
        climbs = "" if level.grad_norm is None else "; the norm gave no warning"
        if level.climbs_from is not None:
            climbs = f"; the norm was above twice that from step {level.climbs_from} on"
        yield f"{'before':<{_LABEL}}usual loss {level.loss:.4g}{norm}{climbs}"
        looked = f"not back at that level in the {counted(level.looked_at, 'step')} after it"
        back = f"back at that level from step {level.back_at} on" if level.back_at is not None else looked
        yield f"{'after':<{_LABEL}}{back}"
    if answer.kept:
        kept = (
            f"{safe(str(one.fields.get('id')))} of step {one.fields.get('step')}"
            f" {'before' if one.seq < answer.event.seq else 'after'} it"
            for one in answer.kept
        )
        yield f"{'kept':<{_LABEL}}checkpoint {', '.join(kept)}"
