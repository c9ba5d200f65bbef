"""The trainer's process: start it, watch it, end it, find out what ended it. Also the messages to the service manager.

Promises: this package imports no torch, nothing in it blocks the loop, and no process that it started outlives the run.
"""

from tolariad.supervisor.lock import FormerTrainer
from tolariad.supervisor.started import Timeouts, TrainerSetup
from tolariad.supervisor.supervisor import Supervisor

__all__ = ["FormerTrainer", "Supervisor", "Timeouts", "TrainerSetup"]
