"""The ten everyday scripts, and the files of each form of them."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
PLAIN, DAEMON, LOOP, PEERS = (HERE / name for name in ("plain", "daemon", "loop", "peers"))
KINDS = tuple(sorted(path.stem for path in PLAIN.glob("*.py")))
# Trainers of others, as they are imported.
OTHERS = ("lightning", "transformers", "accelerate")
# How the ports to them came through kills, written by tests/everyday/peers/survive.py.
RECORD = PEERS / "survived.json"


def files_of(form: Path, kind: str) -> list[Path]:
    """Return the files of a script in one form, in the order in which its lines are compared; [] if there are none."""
    script = form / f"{kind}.py"
    if not script.exists():
        return []
    beside = [form / f"{kind}.yaml"]
    if "rates.py:" in "".join(path.read_text(encoding="utf-8") for path in (script, *beside) if path.exists()):
        beside.insert(0, form / "rates.py")
    return [*(path for path in beside if path.exists()), script]
