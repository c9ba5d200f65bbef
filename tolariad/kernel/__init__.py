"""The recorder: one thread, one turn: drain inputs, decide, apply, commit one frame, publish.

Invariants, each kept in the function named beside it (of `recorder` where no module is named):

1. Nothing is acted on, answered or shown before it is durable: `decide` sees `head`, which includes this turn's events;
   answers, effects, streams and the page follow `durable`, which becomes `head` when the frame is on disk; if the frame can
   never be written, `head` falls back to `durable` (`_commit`).
2. `apply` never refuses; refusing is `decide`'s (core.state, core.decide).
3. Replay runs `apply` only, and `pending(state)` after it is the recovery work list (core.replay, core.decide `Opened`).
4. Edges come in threes (begun, then committed or aborted); levels, such as whether the gate is open, are read from the
   durable state again after every turn (`trainer_link.show`).
5. Clock, randomness and ids enter as fields of inputs; one `Now` is read a turn (`_turn`).
6. Every event carries its cause, the root of its chain and, where someone ordered it, the actor (`_record`).

It must not know: asyncio, sockets of clients, processes, torch. A report of another incarnation never reaches `decide`
(channel.Reports); everything a dead trainer had sent is taken before its death is (`_turn`).
"""

from tolariad.kernel.recorder import Kernel
from tolariad.kernel.turn import Published

__all__ = ["Kernel", "Published"]
