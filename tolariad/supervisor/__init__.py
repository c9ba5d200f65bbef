"""The trainer's process: started, watched, ended, and what ended it told; with what a daemon owes its service manager.

Promises: no torch here, nothing blocks the loop, and no process of ours outlives the run. It must not know: what the
trainer computes, or when a restart is worth it.
"""

from tolariad.supervisor.coordinators import (
    DistributedRollbackCoordinator,
    EmergencyProtocolHandler,
    FastRollbackCoordinator,
)
from tolariad.supervisor.incarnation import Recorder, Timeouts, TrainerSetup
from tolariad.supervisor.lock import FormerTrainer
from tolariad.supervisor.participants import RunParticipant
from tolariad.supervisor.ring import MemoryRing
from tolariad.supervisor.supervisor import Supervisor
from tolariad.supervisor.threaded import TrainerCode

__all__ = [
    "TrainerCode",
    "DistributedRollbackCoordinator",
    "EmergencyProtocolHandler",
    "FastRollbackCoordinator",
    "FormerTrainer",
    "MemoryRing",
    "Timeouts",
    "Recorder",
    "RunParticipant",
    "Supervisor",
    "TrainerSetup",
]
