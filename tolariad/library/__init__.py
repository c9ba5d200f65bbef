"""The library: train under the recorder inside your own program.

Promises: training runs in the caller's thread. A process beside it records, which is the daemon's code.
"""

from tolariad.library.failed import RunFailed
from tolariad.library.loop_task import LoopMisused
from tolariad.library.result import TrainingResult
from tolariad.library.tolaria import Tolaria

__all__ = ["LoopMisused", "RunFailed", "Tolaria", "TrainingResult"]
