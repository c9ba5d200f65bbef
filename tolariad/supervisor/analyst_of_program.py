"""Carries out analyses for pruning in a program: model and data exist there only, so it is asked over the link.

Promises: as of the analyst. The program answers, or the time is over; the result is checked by the same rules.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Final

from tolariad.attach import words
from tolariad.core import messages as m
from tolariad.core.calc.pruning.analysis import AnalysisAnswer, AnalysisRequest
from tolariad.core.calc.pruning.turns import too_slow
from tolariad.leyline.pruning import AnalysisFailed, read_answer, write_request
from tolariad.supervisor.analyst import Analyst, AnalystSetup

# The program itself ends an analysis that takes too long. A program that does not even say so is not waited for.
_GRACE_S: Final = 10.0


class AnalystOfProgram(Analyst):
    """Belongs to one event loop."""

    def __init__(
        self,
        setup: AnalystSetup,
        submit: Callable[[m.AnalysisReply], None],
        ask: Callable[[words.Analyse | words.EndAnalysis], None],
    ) -> None:
        """`ask` sends a message to the program."""
        super().__init__(setup, submit)
        self._ask = ask
        self._answers: asyncio.Future[words.Analysed] | None = None

    def take(self, answer: words.Analysed) -> None:
        """Take the program's answer. One to an analysis that was given up has no effect."""
        if self._answers is not None and not self._answers.done() and answer.cycle == self._cycle:
            self._answers.set_result(answer)

    async def _answer(self, request: AnalysisRequest, limit_s: float) -> AnalysisAnswer:
        request_id = str(uuid.uuid4())
        self._answers = asyncio.get_running_loop().create_future()
        body = write_request(request, request_id, limit_s, self._known)
        self._ask(words.Analyse(cycle=request.cycle, limit_s=limit_s, request=body))
        try:
            async with asyncio.timeout(limit_s + _GRACE_S):
                answer = await self._answers
        except TimeoutError:
            raise AnalysisFailed(too_slow(limit_s)) from None
        finally:
            self._answers = None
            self._ask(words.EndAnalysis(cycle=request.cycle))
        if answer.why:
            raise AnalysisFailed(answer.why)
        return read_answer(answer.answer, request_id)
