"""Generate docs/everyday.md: the lines of each everyday script that change, for tolariad and for other trainers.

Promises: the lines are counted in the files that the tests run. What is said of others was measured on their ports.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import NamedTuple

from tests.everyday.scripts import DAEMON, DENSE, KINDS, LOOP, OTHERS, PEERS, PLAIN, PORTED, RECORD, files_of

_NAMES = {"lightning": "Lightning", "transformers": "HF Trainer", "accelerate": "Accelerate"}
_ABOUT = {
    "accumulation": "four batches accumulated, bf16, an average of the weights",
    "bert_layerwise": "masked words, a rate for each layer, a collate function with a generator",
    "contrastive": "two encoders, one loss",
    "ctc": "sounds of different lengths, a batch sampler with a generator, the CTC loss",
    "ddpm_ema": "a diffusion model and a moving average of it",
    "distillation": "a frozen teacher and a student",
    "finetuning": "frozen layers, two rates, lowered on a plateau",
    "gan": "two networks, two optimizers",
    "image": "a convolutional network, random flips, one-cycle rates",
    "nanogpt": "a GPT, random windows of a memory map, accumulated gradients",
    "pinn": "a differential equation, points drawn in each step, second derivatives",
    "ppo": "rollouts, and several epochs of minibatches of each",
    "reinforcement": "Q-learning with a replay buffer and a target network",
    "sparse_adam": "two sparse embeddings, negatives drawn in each step, SparseAdam",
    "streaming": "an iterable dataset without a length",
    "tabular": "embeddings and numbers, rates by steps, the best weights kept",
    "text": "a transformer, warm-up and cosine, clipped gradients",
    "unet_workers": "a U-Net, two workers, a loader and a data set with generators",
}
# Of a port that does not exist.
_NO_PORT = {
    ("transformers", "gan"): "two optimizers in turn: its loop has one",
    ("transformers", "reinforcement"): "it needs a dataset; the data is made while it trains",
}
# What somebody moved by hand: its lines, those that changed by loop, and what stopped the one who moved it.
_BY_HAND = (
    (
        "a graph network, neighbours sampled by a loader of its own",
        "86",
        "+12 −9",
        "nothing; the plain script's weights are the same",
    ),
    (
        "distillation in two phases, a run for each",
        "52",
        "+10 −11",
        "nothing",
    ),
    (
        "a byte pair tokenizer that is trained in the script, then a GPT",
        "95",
        "+14 −8",
        (
            "its vocabulary was numbered in the order of a set, which differs in each process: the first "
            "resume said that a step differs. Sorted, the plain script's weights are the same"
        ),
    ),
    (
        "`argparse` and three YAML files",
        "95",
        "+16 −17",
        "its schedule by hand is a policy of the configuration",
    ),
    (
        "as with Hydra: each start changes to a folder of its own",
        "66",
        "+7 −5",
        (
            "a relative `run_dir` was another run at each start, in silence; it is said now. The plain "
            "script's weights are the same"
        ),
    ),
    (
        "a project of 507 lines with a trainer class, callbacks, an average, mixup and a scheduler",
        "507",
        "+42 −21",
        "the mean loss of the epoch, a counter that it did not keep, was of the rest of the epoch in its log",
    ),
    (
        "a time series, with a scaler of scikit-learn",
        "50",
        "+9 −7",
        "nothing",
    ),
    (
        "a mixture of experts",
        "38",
        "+8 −7",
        "nothing",
    ),
    (
        "active learning, whose data set grows",
        "33",
        "+8 −7",
        "nothing",
    ),
    (
        "federated averaging in one process",
        "27",
        "+8 −7",
        "nothing",
    ),
    (
        "evolution strategies without gradients",
        "30",
        "+7 −4",
        "nothing",
    ),
    (
        "processes of its own, by multiprocessing",
        "37",
        "+7 −7",
        "nothing",
    ),
)
_HEAD = """\
# Everyday scripts

Somebody has a training script. What has to change so that it survives `kill -9`? This page counts the lines, for
eighteen scripts of the kind that people have. They are in `tests/everyday/plain/`: each has a model, an optimizer and a
loop of plain PyTorch, and knows nothing of tolariad. `make docs` generates this page from the files.

* **by loop** is the script with [a loop by iteration](library.md#a-loop-of-your-own) (`tests/everyday/loop/`);
* **by daemon** is a [task](task.md) with its configuration (`tests/everyday/daemon/`);
* the others are ports to Lightning {lightning}, the Trainer of transformers {transformers} and Accelerate {accelerate}
  (`tests/everyday/peers/`). They have the lines that save after each epoch and resume.

A cell is the number of lines that are new and of those that went, as `difflib` finds them. Blank lines and indentation
do not count; a configuration file does. All files have the same formatter. A line that moved into a method without any
other change may count twice.
"""
_EIGHT = """\

Eight more have what the ten lack. Nobody ported them to other trainers:
"""
_AFTER = """\

All of them are killed twice, by loop and by daemon (`tests/everyday/test_everyday.py`). Of the eight, `make test` runs
one by daemon, and `make torture` all. The signal is SIGKILL, the steps are drawn from a seed, and some kills come while
a checkpoint is being written. Weights, optimizer, random generators, the script's own values, and the loss of every
step are compared bit for bit with a run without kills. By loop the weights are also those of the plain script, bit for
bit. The order of batches and the seed at the loop's beginning must then be the same.

* A rate that is computed by a schedule of torch's may differ in the last bit from that of the same policy here. The
  schedules of these scripts do not; those of `bert_layerwise` because each layer has half the rate of the next.
* `onecycle` cycles the rate only; the plain script has `cycle_momentum=False` for that reason.
* `nanogpt` sets its rates by hand, and its loop leaves that to a schedule. `ppo` draws its rollout at the first batch
  of an iteration and keeps it. What stands before `run.batches()` is done again if a run goes on in mid-epoch.
* `pinn` has no second phase. Adam and then LBFGS, by a closure, killed at dense checkpoints in both phases, is in
  `tests/library/loops/test_released.py`.
* The eight checkpoint without a pause while they are killed. Each of their starts after a kill goes on from a
  checkpoint that has steps; the tests look that up in the journal.
* The script with the stream ends after `stop.steps` steps: its data have no length.
"""
_BY_HAND_HEAD = """\

## Twelve scripts of other kinds

Twelve more were written as a stranger would, and then moved to the loop by these pages alone. They are not in the
tests. All ended with the bits of the undisturbed run:

* The first six were killed twice while they checkpoint without a pause, and twice with a checkpoint at their begin
  only. The first two were killed four more times: at a boundary, and while the files of a checkpoint were being
  written. The scripts of the other four are not kept, so that nobody can kill them again.
* The last six were killed up to five times while they checkpoint without a pause: in a step, at the gate, at a
  boundary, while a checkpoint was being written, and in a re-run.

"""
_BY_HAND_END = """\

Of the last six, which somebody else moved, one had a kept counter that was silently wrong. That is mended. Only their
loops were kept. What they were before was written again from these, to count the lines.
"""
_RESULTS = """\

## Results after a kill

The ports to other trainers save after each epoch. They were killed in the third epoch: once in a step, and once while
the epoch's checkpoint was being written. The second kill came after the first file of `torch.save`. Then they were
started again in the same way (`tests/everyday/peers/survive.py`). For tolariad the tests above demand what the table
says, at any step and at any file of a checkpoint.

* *exact*: the weights at the end are those of a run that was not killed;
* *differs*: it ends, with other weights;
* *fails*: the start ends with an error, until somebody deletes the damaged checkpoint.
"""
_END = """\

Lightning does not save the state of the random generators, so the order of the data and dropout differ after a resume.
The checkpoints of the Trainer and of Accelerate are folders that are filled in place; one that is not complete is taken
for the newest. After a kill the ports repeat the epoch from its start, and nothing says whether it was the same. A run
of tolariad makes the steps since the last checkpoint again, and compares each with its journal.
"""


class Changed(NamedTuple):
    """Lines that are new, and lines that went."""

    added: int
    removed: int


def lines_of(paths: list[Path]) -> list[str]:
    """Return the lines of the files, without blank ones and without indentation."""
    return [line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def changed(before: list[str], after: list[str]) -> Changed:
    """Count the lines that differ."""
    codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    edits = [code for code in codes if code[0] != "equal"]
    return Changed(sum(j2 - j1 for *_, j1, j2 in edits), sum(i2 - i1 for _, i1, i2, *_ in edits))


def table() -> dict[str, dict[str, Changed | None]]:
    """Return for each kind what changes in each form; None if there is no port."""
    forms = {"loop": LOOP, "daemon": DAEMON} | {name: PEERS / name for name in OTHERS}
    return {
        kind: {
            name: changed(lines_of(files_of(PLAIN, kind)), lines_of(files)) if (files := files_of(form, kind)) else None
            for name, form in forms.items()
        }
        for kind in KINDS
    }


def everyday_page() -> str:
    """Return the whole page as Markdown."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    head = _HEAD.format(**record["versions"])
    return "\n".join(
        [
            head,
            *_lines_table(),
            _EIGHT,
            *_table_of_eight(),
            _AFTER,
            _BY_HAND_HEAD,
            *_table_by_hand(),
            _BY_HAND_END,
            _RESULTS,
            *_survival_table(record["survived"]),
            *_notes(),
            _END,
        ]
    )


def _lines_table() -> list[str]:
    names = ["by loop", "by daemon", *_NAMES.values()]
    rows = [f"| script | lines | {' | '.join(names)} |", "|---|---" + "|---" * len(names) + "|"]
    return [*rows, *(_row(kind, list(found.values())) for kind, found in table().items() if kind in PORTED)]


def _table_of_eight() -> list[str]:
    rows = ["| script | lines | by loop | by daemon |", "|---|---|---|---|"]
    return [*rows, *(_row(kind, [table()[kind][form] for form in ("loop", "daemon")]) for kind in DENSE)]


def _table_by_hand() -> list[str]:
    rows = ["| script | lines | by loop | what stopped the one who moved it |", "|---|---|---|---|"]
    return [*rows, *(f"| {' | '.join(cells)} |" for cells in _BY_HAND)]


def _row(kind: str, found: list[Changed | None]) -> str:
    cells = ["—" if one is None else f"+{one.added} −{one.removed}" for one in found]
    return f"| `{kind}`: {_ABOUT[kind]} | {len(lines_of(files_of(PLAIN, kind)))} | {' | '.join(cells)} |"


def _survival_table(survived: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    names = [f"{name}, {when}" for name in ("tolariad", *_NAMES.values()) for when in ("in a step", "saving")]
    rows = [f"| script | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for kind in PORTED:
        cells = ["exact", "exact"]
        for other in OTHERS:
            found = survived[other].get(kind)
            cells += ["—", "—"] if found is None else [found["step"], found["saving"]]
        rows.append(f"| `{kind}` | {' | '.join(cells)} |")
    return rows


def _notes() -> list[str]:
    missing = [f"* {_NAMES[other]} has no `{kind}`: {why}." for (other, kind), why in _NO_PORT.items()]
    return ["", *missing]
