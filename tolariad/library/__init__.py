"""The library: train under the recorder inside your own program.

Promises: it uses the daemon's kernel, journal and trainer, without the event loop and without other processes.
"""

from tolariad.library.live import RunFailed
from tolariad.library.loop_task import LoopMisused
from tolariad.library.result import TrainingResult
from tolariad.library.tolaria import Tolaria

__all__ = ["LoopMisused", "RunFailed", "Tolaria", "TrainingResult"]
