"""The library: a run recorded inside a program of one's own.

Promises: the daemon's kernel, journal and trainer, without its loop and its processes. It must not know: any rule of a run.
"""

from tolariad.library.live import RunFailed
from tolariad.library.tolaria import Tolaria, TrainingResult

__all__ = ["RunFailed", "Tolaria", "TrainingResult"]
