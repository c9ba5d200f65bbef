"""`tolariad profile`: the parts of a step, the table of operations, and the name of the trace."""

from __future__ import annotations

import json

import pytest

from tests.cli.stored import record
from tolariad.trainer.probes.messages import Operation, PartOfStep, Profile

KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >"


def made(device_ms=0.0):
    names = [KERNEL, *(f"aten::operation_{n}" for n in range(11))]
    return Profile(
        device="cpu",
        threads=1,
        steps=20,
        step_ms=4.0,
        profiled_ms=6.5,
        parts=(PartOfStep("data", 0.5), PartOfStep("forward", 3.0), PartOfStep("tolariad", 0.5)),
        operations=tuple(Operation(name, 12.0 - n, 1.0, device_ms) for n, name in enumerate(names)),
        trace="digits.trace.json.gz",
        trace_bytes=172_100,
    )


@pytest.mark.parametrize("device_ms", [0.0, 2.0])
def test_the_parts_and_ten_operations_fit_80_columns(tolariad, answer, device_ms):
    """With an accelerator they have a column more, and are compared by the time on it."""
    asked = answer(made(device_ms))
    code, out, err = tolariad("profile", "--task", "digits")
    lines = out.splitlines()
    table = lines[lines.index("") + 5 :][: 1 + 10]

    assert (code, err) == (0, "")
    assert max(map(len, lines)) <= 80
    assert "forward   3.000 ms  75.0 %" in lines
    assert any(line.startswith("tolariad  0.500 ms  12.5 %   without waiting") for line in lines)
    assert ("DEVICE MS" in table[0]) == bool(device_ms)
    assert table[1].split("  ")[0] == "void at::native::vectorized_el...char*, 3> >"
    assert [line.split()[0] for line in table[2:]] == [f"aten::operation_{n}" for n in range(9)]
    assert {line.split("%")[0].split()[-1] for line in table[1:]} == {"8.3"}
    assert lines[-1] == "trace          digits.trace.json.gz, 172.1 kB: open it in ui.perfetto.dev"
    assert (asked[0].warmup, asked[0].steps, asked[0].output) == (5, 20, "digits.trace.json.gz")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--task", "./mine.py:MyTask"), "MyTask.trace.json.gz"),
        (("--task", "digits", "--dir", "RUN"), "run.trace.json.gz"),
        (("--task", "digits", "-o", "other.json"), "other.json"),
    ],
)
def test_the_trace_is_named_after_the_run(tolariad, answer, run_dir, arguments, name):
    """Unless a file is given."""
    record(run_dir)
    asked = answer(made())
    code, out, _ = tolariad("profile", *(run_dir if one == "RUN" else one for one in arguments), "--json")

    assert code == 0
    assert asked[0].output == name
    assert json.loads(out)["parts"][1] == {"name": "forward", "ms": 3.0}


def test_a_profile_in_a_process_of_its_own(tolariad, tmp_path):
    """The built-in task. Nothing but the answer is printed, and only the trace is written."""
    trace = tmp_path / "work" / "mine.json"
    code, out, err = tolariad("profile", "--task", "digits", "--steps", "3", "--warmup", "1", "-o", trace, "--json")
    found = json.loads(out)

    assert (code, err) == (0, "")
    assert {part["name"] for part in found["parts"]} == {"data", "forward", "backward", "optimizer", "tolariad"}
    assert len(json.loads(trace.read_text())["traceEvents"]) > 100
    assert list((tmp_path / "work").iterdir()) == [trace]


def test_a_trace_that_cannot_be_written_is_74(tolariad, answer):
    """The folder is looked at first."""
    asked = answer(made())
    code, out, err = tolariad("profile", "--task", "digits", "-o", "none/mine.json")

    assert (code, out, asked) == (74, "", [])
    assert "there is no folder none" in err
