"""The page of a node: what each run says, each family together, and nothing that is not of our format."""

from __future__ import annotations

from tolariad.telemetry.exposition import counter, gauge, histogram, text
from tolariad.telemetry.merging import RunPage, merged


def page(name: str, loss: float) -> str:
    found = [
        counter("tolaria_steps_completed_total", "Steps.", 3),
        gauge("tolaria_current_loss", "Loss.", loss),
        histogram("tolaria_epoch_duration_seconds", "Epochs.", (1.0,), (2, 1), 4.0),
    ]
    return text(found, {"run": name})


def test_families_stand_together():
    """Two runs of one name: each sample with its folder, each HELP and TYPE once."""
    found = merged([RunPage("/a/x", "x", page("x", 1.5)), RunPage('/b"/x', "x", page("x", 2.5))]).splitlines()

    assert found[:4] == [
        "# HELP tolaria_run_up 1 if the run's recorder answers.",
        "# TYPE tolaria_run_up gauge",
        'tolaria_run_up{dir="/a/x",run="x"} 1',
        'tolaria_run_up{dir="/b\\"/x",run="x"} 1',
    ]
    place = found.index("# TYPE tolaria_current_loss gauge")
    assert found[place + 1 : place + 3] == [
        'tolaria_current_loss{dir="/a/x",run="x"} 1.5',
        'tolaria_current_loss{dir="/b\\"/x",run="x"} 2.5',
    ]
    assert sum(line.startswith("# TYPE") for line in found) == 4
    assert sum(line.startswith("tolaria_epoch_duration_seconds_bucket") for line in found) == 4


def test_a_run_that_does_not_answer_has_its_mark_only():
    """It is down, and the others are there."""
    found = merged([RunPage("/a", "a", None), RunPage("/b", "b", page("b", 1.0))])

    assert 'tolaria_run_up{dir="/a",run="a"} 0' in found
    assert found.count('dir="/a"') == 1
    assert merged([]) == ""


def test_what_is_not_of_our_format_is_left_out():
    """Another family, a sample without a family, a value with more behind it, a comment."""
    strange = (
        "evil 1\n# TYPE node_load gauge\nnode_load{} 1\ntolaria_x{} 1\n# TYPE tolaria_x gauge\n# hello\ntolaria_x{} 2 3"
    )
    assert merged([RunPage("/a", "a", strange + "\ntolaria_x{} 4\r\ntolaria_x{} 5")]).splitlines()[3:] == [
        "# TYPE tolaria_x gauge",
        'tolaria_x{dir="/a"} 5',
    ]
