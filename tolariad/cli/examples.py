"""An example for the help of each command: one line that can be typed."""

from __future__ import annotations

from typing import Final

import click

# The name of a command, and what follows it. Two examples are two lines.
EXAMPLES: Final = {
    "tolaria run": "--task digits --epochs 20 --dir runs/digits",
    "tolaria status": "runs/digits",
    "tolaria watch": "runs/digits",
    "tolaria quarantine add": "-r digits --batch 3:17-19 --reason 'broken images'",
    "tolaria quarantine list": "runs/digits",
    "tolaria quarantine remove": "q0003 -r digits",
    "tolaria lr set": "default 0.0005 -r digits --reason 'the norm drifts'",
    "tolaria lr show": "runs/digits",
    "tolaria seeds advance": "neck -r digits",
    "tolaria seeds cull": "neck -r digits --reason 'it does not help'",
    "tolaria seeds germinate": "neck --blueprint conv -r digits",
    "tolaria seeds list": "runs/digits",
    "tolaria prune analyze": "runs/digits",
    "tolaria prune apply": "runs/digits",
    "tolaria prune compact": "runs/digits",
    "tolaria prune disable": "runs/digits",
    "tolaria prune enable": "runs/digits",
    "tolaria prune status": "runs/digits",
    "tolaria logs": "runs/digits -n 50 -f",
    "tolaria list": "runs",
    "tolaria events": "runs/digits -t Checkpoint --since '2 hours ago'",
    "tolaria state": "runs/digits --at step:100",
    "tolaria why": "runs/digits spike --show",
    "tolaria diff": "runs/monday runs/tuesday\nruns/monday step:100 now",
    "tolaria checkout": "runs/digits --step 100 -o step-100",
    "tolaria reexecute": "runs/digits --from 41200 --to 41210",
    "tolaria report": "runs/digits -o digits.html",
    "tolaria metrics": "runs/digits loss --csv",
    "tolaria plot": "runs/digits loss -o loss.png",
    "tolaria reload": "runs/digits",
    "tolaria follow": "runs/digits --to tensorboard",
    "tolaria checkpoints": "runs/digits --verify",
    "tolaria export-weights": "runs/digits --id best -o model.safetensors",
    "tolaria journal export": "runs/digits --steps -o steps.parquet",
    "tolaria journal repair": "runs/digits --dry-run",
    "tolaria journal stats": "runs/digits",
    "tolaria journal verify": "runs/digits",
    "tolaria call": "Status -r digits",
    "tolaria version": "runs/digits",
    "tolaria pause": "runs/digits --reason lunch",
    "tolaria resume": "runs/digits",
    "tolaria extend": "runs/digits --epochs 40",
    "tolaria checkpoint": "runs/digits",
    "tolaria stop": "runs/digits --reason 'seen enough'",
    "tolaria note": "'lowered the rate, the norm drifts' -r digits",
    "tolaria stage": "'harder data from now on' -r digits",
    "tolaria rollback": "runs/digits --epoch 3 --yes",
    "tolaria emergency": "severe -r digits --reason 'smoke'",
    "tolariad run": "--task digits --epochs 20 --dir runs/digits",
    "tolariad check": "my.yaml --set batch_size=64",
    "tolariad new-task": "mine/task.py",
    "tolariad test": "-r digits --checkpoint best",
    "tolariad lr-find": "my.yaml --steps 200",
    "tolariad profile": "my.yaml -o trace.json.gz",
}


def put_examples(command: click.Command, name: str) -> click.Command:
    """Put the examples of a command, or of those of a group, below their help. `name` begins with the program's."""
    if isinstance(command, click.Group):
        for below, one in command.commands.items():
            put_examples(one, f"{name} {below}")
    elif example := EXAMPLES.get(name):
        # Not to be wrapped: it is there to be copied.
        command.epilog = "\n".join(["\b", "Example:", *(f"  {name} {one}" for one in example.split("\n"))])
    return command
