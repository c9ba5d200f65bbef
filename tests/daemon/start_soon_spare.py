"""A daemon whose spare comes as soon as a trainer trains."""

from __future__ import annotations

import sys

from tests.daemon.start_daemon import main
from tolariad.supervisor import spare

if __name__ == "__main__":
    spare.AFTER_S, spare._LOOK_S = 0.0, 0.05
    sys.exit(main())
