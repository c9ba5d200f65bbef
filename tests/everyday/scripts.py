"""The everyday scripts, and the files of each form of them."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PLAIN, DAEMON, LOOP, PEERS = (HERE / name for name in ("plain", "daemon", "loop", "peers"))
KINDS: tuple[str, ...] = tuple(sorted(path.stem for path in PLAIN.glob("*.py")))
# These checkpoint without a pause while they are killed. Nobody ported them to the trainers of others.
DENSE = ("bert_layerwise", "ctc", "ddpm_ema", "nanogpt", "pinn", "ppo", "sparse_adam", "unet_workers")
PORTED = tuple(kind for kind in KINDS if kind not in DENSE)
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
    text = "".join(path.read_text(encoding="utf-8") for path in (script, *beside) if path.exists())
    if rates := re.search(r"(\w*rates\.py):", text):
        beside.insert(0, form / rates[1])
    return [*(path for path in beside if path.exists()), script]
