"""The library: train under the recorder inside your own program.

Promises: it uses the daemon's kernel, journal and trainer, without the event loop and without other processes.
"""

from tolariad.library.live import RunFailed
from tolariad.library.tolaria import Tolaria, TrainingResult

__all__ = ["RunFailed", "Tolaria", "TrainingResult"]
