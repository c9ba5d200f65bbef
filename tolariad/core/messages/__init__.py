"""Every message, in one namespace: `from tolariad.core import messages as m`. A file a concern."""

from tolariad.core.messages.architecture import *
from tolariad.core.messages.base import *
from tolariad.core.messages.boundary import *
from tolariad.core.messages.boundary_order import *
from tolariad.core.messages.budget import *
from tolariad.core.messages.checkpoints import *
from tolariad.core.messages.control import *
from tolariad.core.messages.health import *
from tolariad.core.messages.inputs import *
from tolariad.core.messages.insurance import *
from tolariad.core.messages.pruning import *
from tolariad.core.messages.pruning_mask import *
from tolariad.core.messages.quarantine import *
from tolariad.core.messages.rates import *
from tolariad.core.messages.rates_hyper import *
from tolariad.core.messages.rollback import *
from tolariad.core.messages.run import *
from tolariad.core.messages.seeds import *
from tolariad.core.messages.snapshots import *
from tolariad.core.messages.stages import *
from tolariad.core.messages.steps import *
from tolariad.core.messages.steps_rerun import *
from tolariad.core.messages.steps_script import *
from tolariad.core.messages.strategy import *
from tolariad.core.messages.trainer import *
