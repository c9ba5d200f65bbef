"""A user's rate function is called for every step of the run, and refused with the step if it cannot set rates."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tolariad import rate_functions
from tolariad.core.calc.learning_rate.tabulated import STEPS_MAX, unpacked
from tolariad.rate_functions import FunctionRefused, pinned, tabulate


@pytest.fixture
def write(tmp_path):
    """Write a source file and return the policy that names its function `f`."""

    def _write(text: str, name: str = "sched") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        return f"{path}:f"

    return _write


def test_a_function_is_called_with_the_updates_before_each_step_and_the_horizon(write):
    """As torch's LambdaLR counts. The table names file, function and the hash of the source."""
    policy = write("def f(step, total_steps):\n    return step / total_steps\n")
    table = tabulate(policy, 4)

    assert list(unpacked(table.packed, 4)) == [0.0, 0.25, 0.5, 0.75]
    assert (table.source, table.name, table.steps) == (policy, "sched.py:f", 4)
    assert table.hash == hashlib.sha256(Path(policy.rpartition(":")[0]).read_bytes()).hexdigest()
    assert pinned(policy) == f"{policy}@{table.hash[:16]}"
    assert tabulate(pinned(policy), 4) == table
    assert tabulate(write("f = lambda step, total: step + 1", "whole"), 2).steps == 2


@pytest.mark.parametrize(
    ("body", "steps", "why"),
    [
        ("return -0.1 if step == 2 else 1.0", 3, "at step 2 it gives -0.1"),
        ("return float('nan') if step == 1 else 1.0", 3, "at step 1 it gives nan"),
        ("return float('inf')", 3, "at step 0 it gives inf"),
        ("return 1 / (1 - step)", 3, r"\(1, 3\) raises ZeroDivisionError"),
        ("return None", 3, r"\(0, 3\) raises TypeError"),
        ("return 1.0", STEPS_MAX + 1, f"at most {STEPS_MAX} steps"),
        ("return 1.0", None, "needs the number of steps"),
        ("import random; return random.random()", 3, "it must depend on its arguments only"),
    ],
)
def test_a_function_that_cannot_set_rates_is_refused_with_the_step(write, body, steps, why):
    """Negative, not finite, raising, impure, too long, or without a horizon."""
    with pytest.raises(FunctionRefused, match=why):
        tabulate(write(f"def f(step, total_steps):\n    {body}\n"), steps)


def test_what_is_no_function_is_refused_by_its_name(write):
    """No file, no Python, no such name, another number of parameters."""
    cases = {
        "/nowhere/a.py:f": "cannot be read: No such file",
        write("def f(:\n"): "cannot be imported: SyntaxError",
        write("f = 3\n", "number"): "has no function 'f'",
        write("def f(step): return 1.0\n", "short"): "it is called with the step and the number of steps",
    }
    for policy, why in cases.items():
        with pytest.raises(FunctionRefused, match=why):
            tabulate(policy, 3)


def test_a_source_that_changed_under_a_run_is_refused_with_both_hashes(write):
    """Its trainer is given the hash that the run has recorded."""
    before = pinned(write("def f(step, total_steps): return 1.0\n"))
    after = pinned(write("def f(step, total_steps): return 0.5\n"))

    with pytest.raises(FunctionRefused, match=f"its hash was {before[-16:]} and is {after[-16:]}"):
        tabulate(before, 3)


def test_a_table_that_is_too_large_for_the_state_is_refused(write, monkeypatch):
    """Random values have no pattern, so the limit is on what a table takes and not on its steps only."""
    monkeypatch.setattr(rate_functions, "PACKED_MAX", 1000)
    text = "import random\ndef f(step, total_steps): return random.Random(step).random()\n"
    with pytest.raises(FunctionRefused, match="at most 1000 fit into the state"):
        tabulate(write(text), 1000)
