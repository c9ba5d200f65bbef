"""Every slice of RunState with its fold, in one namespace: `from tolariad.core import state as st`."""

from tolariad.core.state.architecture import *
from tolariad.core.state.boundary import *
from tolariad.core.state.branch import *
from tolariad.core.state.budget import *
from tolariad.core.state.checkpoints import *
from tolariad.core.state.checkpoints_catalogue import *
from tolariad.core.state.control import *
from tolariad.core.state.fates import *
from tolariad.core.state.fold import *
from tolariad.core.state.health import *
from tolariad.core.state.health_detection import *
from tolariad.core.state.insurance import *
from tolariad.core.state.pruning import *
from tolariad.core.state.pruning_parts import *
from tolariad.core.state.rates import *
from tolariad.core.state.rollback import *
from tolariad.core.state.run import *
from tolariad.core.state.run_limit import *
from tolariad.core.state.said import *
from tolariad.core.state.seeds import *
from tolariad.core.state.snapshots import *
from tolariad.core.state.stages import *
from tolariad.core.state.steps import *
from tolariad.core.state.steps_code import *
from tolariad.core.state.strategy import *
from tolariad.core.state.trainer import *
