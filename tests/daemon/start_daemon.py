"""A daemon process for tests: it takes one JSON object and exits with the code of `tolariad run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from tolariad.daemon import From, RunRequest, StartRefused, run
from tolariad.supervisor import Timeouts
from tolariad.supervisor.hang import HangLimits


def main() -> int:
    """Start the requested run."""
    asked = json.loads(sys.argv[1])
    hang = HangLimits(floor_s=asked.pop("hang_s", 30.0), unknown_s=asked.pop("unknown_s", 600.0))
    timeouts = Timeouts(hang=hang, poll_s=0.05, stacks_s=asked.pop("stacks_s", 2.0), kill_s=asked.pop("kill_s", 30.0))
    for name in ("run_dir", "config"):
        if name in asked:
            asked[name] = Path(asked[name])
    for name in ("sets", "trainer_command"):
        if name in asked:
            asked[name] = tuple(asked[name])
    if "begin_from" in asked:
        asked["begin_from"] = msgspec.convert(asked["begin_from"], From, dec_hook=lambda kind, text: kind(text))
    try:
        return run(RunRequest(timeouts=timeouts, **asked))
    except StartRefused as refused:
        print(refused, file=sys.stderr)
        return refused.code


if __name__ == "__main__":
    sys.exit(main())
