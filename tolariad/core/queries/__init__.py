"""Questions to several slices, in one namespace: `from tolariad.core import queries as q`. Values, never decisions."""

from tolariad.core.queries.checkpoints import *
from tolariad.core.queries.figures import *
from tolariad.core.queries.health import *
from tolariad.core.queries.insurance import *
from tolariad.core.queries.pruning import *
from tolariad.core.queries.rollback import *
from tolariad.core.queries.rollback_target import *
from tolariad.core.queries.run import *
from tolariad.core.queries.run_limit import *
from tolariad.core.queries.seeds import *
from tolariad.core.queries.snapshots import *
from tolariad.core.queries.steps import *
from tolariad.core.queries.strategy import *
from tolariad.core.queries.trainer_data import *
