"""`tolaria metrics` and `tolaria plot`: every step once, names that are told apart, pictures that fit."""

from __future__ import annotations

import csv
import io
import math
import sys

import pytest

from tolariad.cli.plot import thinned
from tolariad.core import messages as m

NAN = math.nan


@pytest.fixture
def measured(recorder):
    """Twelve steps without metrics, then two of epoch 2 with some; an epoch of which everything is known."""
    recorder.report(m.MetricsNamedReport(names=("acc", "lr")))
    step(recorder, 13, loss=NAN, metrics=(0.5, 7.0))
    step(recorder, 14, metrics=(math.inf, NAN))
    recorder.report(m.MetricsNamedReport(names=("later",)))
    step(recorder, 15, metrics=(NAN, 8.0, -1.5))
    return recorder


def step(recorder, number, *, loss=0.25, epoch=2, metrics=()):
    recorder.report(
        m.StepReport(
            step=number, epoch=epoch, batch=number - 10, loss=loss, grad_norm=-1.0, lr=0.1, rates=1, metrics=metrics
        )
    )


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_step_once_with_every_number(tolaria, measured, run_dir):
    """Missing ones are empty; others can be read back bit for bit; `lr` of the task has a name of its own."""
    said = tolaria("metrics", run_dir, "--csv")
    rows = rows_of(said.out)

    assert (said.code, said.err) == (0, "")
    assert [int(row["step"]) for row in rows] == list(range(1, 16))
    assert list(rows[0]) == ["step", "epoch", "time", "loss", "grad_norm", "lr", "acc", "metric/lr", "later"]
    assert [rows[0][name] for name in ("acc", "metric/lr", "later")] == ["", "", ""]
    last = [[row[name] for name in ("loss", "grad_norm", "lr", "acc", "metric/lr", "later")] for row in rows[-3:]]
    assert last == [
        ["nan", "", "0.1", "0.5", "7.0", ""],
        ["0.25", "", "0.1", "inf", "", ""],
        ["0.25", "", "0.1", "", "8.0", "-1.5"],
    ]
    assert rows[-1]["epoch"] == "2"
    assert rows[-1]["time"].endswith("Z")


def test_json_lines_leave_out_what_a_step_does_not_have(tolaria, measured, run_dir):
    """A number that is not finite is null with a word beside it, as everywhere."""
    lines = tolaria("metrics", run_dir, "--json", "-n", "3").lines

    assert [line["step"] for line in lines] == [13, 14, 15]
    assert {name: lines[0][name] for name in ("loss", "loss_state", "acc")} == {
        "loss": None,
        "loss_state": "nan",
        "acc": 0.5,
    }
    assert (lines[1]["acc"], lines[1]["acc_state"]) == (None, "pos_inf")
    assert "metric/lr" not in lines[1]
    assert "grad_norm" not in lines[1]
    assert "acc" not in lines[2]


def test_a_live_run_and_a_dead_one_print_the_same(tolaria, live_run, run_dir):
    """By its name, by its folder, or as the only live one; the names of numbers may follow."""
    live_run.recorder.report(m.MetricsNamedReport(names=("acc",)))
    step(live_run.recorder, 13, metrics=(0.5,))
    shown = tolaria("metrics", run_dir, "acc").out
    assert tolaria("--dir", run_dir, "metrics", "acc").out == shown
    live_run.recorder.journal.close()
    assert tolaria("metrics", run_dir, "acc").out == shown
    assert shown.splitlines()[-1].split() == ["13", "2", "0.5"]


def test_an_unknown_name_is_refused_with_the_nearest_one(tolaria, measured, run_dir):
    """And with all that there are; a result of a validation says where it is."""
    said = tolaria("metrics", run_dir, "ac", "loss")
    assert said.code == 2
    assert "no number 'ac'; it has loss, grad_norm, lr, acc, metric/lr, later; did you mean acc?" in said.err
    assert "add --epochs" in tolaria("metrics", run_dir, "val_loss").err
    assert "there is no run 'nowhere'" in tolaria("metrics", "nowhere", "acc").err
    assert "exclude each other" in tolaria("metrics", run_dir, "--csv", "--json").err
    assert "exclude each other" in tolaria("metrics", run_dir, "--epochs", "--validations").err
    said = tolaria("plot", run_dir, "ac")
    assert (said.code, "; did you mean acc?" in said.err) == (2, True)


def test_a_long_run_is_thinned_and_says_so_and_fits_the_terminal(tolaria, recorder, run_dir):
    """Rows of the whole run and the last ten; columns that do not fit are named."""
    recorder.report(m.MetricsNamedReport(names=tuple(f"metric number {n}" for n in range(9))))
    for number in range(13, 201):
        step(recorder, number, metrics=tuple(number + n / 7 for n in range(9)))
    said = tolaria("metrics", run_dir)
    lines = said.out.splitlines()

    assert len(lines) == 41
    assert max(map(len, lines)) <= 80
    steps = [int(line.split()[0]) for line in lines[1:]]
    assert steps[0] == 1
    assert steps[-10:] == list(range(191, 201))
    assert "40 of 200 rows are shown: about every 6th, and the last 10." in said.err
    assert "columns do not fit: metric number" in said.err
    assert "metric number 8" in " ".join(said.err.split())
    assert len(tolaria("metrics", run_dir, "-n", "50").out.splitlines()) == 51
    assert len(tolaria("metrics", run_dir, "--csv").out.splitlines()) == 201


def test_a_validation_within_an_epoch_has_a_row_and_is_none_of_the_epoch(tolaria, recorder, run_dir):
    """One that a rollback gave up has none. The row of its epoch has the results of the epoch's own."""
    before = tolaria("metrics", run_dir, "--validations", "--json").lines
    step(recorder, 13)
    within = m.ValidationReport(epoch=2, step=13, batch=3, metrics={"accuracy": 0.125}, samples=9, seconds=0.1)
    recorder.report(within)

    said = tolaria("metrics", run_dir, "--validations", "--json")
    assert [one["epoch"] for one in before] == [1]
    assert said.lines == [*before, {"epoch": 2, "step": 13, "val_accuracy": 0.125}]
    assert [one["epoch"] for one in tolaria("metrics", run_dir, "--epochs", "--json").lines] == [1]
    assert tolaria("metrics", run_dir, "--validations").out.splitlines()[-1].split()[:3] == ["2", "13", "0.125"]


def test_an_epoch_has_its_means_and_the_results_of_its_validation(tolaria, recorder, run_dir):
    """The loss of an epoch is its mean; a run without a finished epoch says so."""
    said = tolaria("metrics", run_dir, "--epochs", "val_accuracy", "loss", "--json")
    assert said.code == 0
    assert said.lines == [
        {"epoch": 1, "step": 10, "val_accuracy": pytest.approx(0.5, abs=0.5), "loss": pytest.approx(0.5, abs=0.5)}
    ]
    head, row = tolaria("metrics", run_dir, "--epochs").out.splitlines()
    assert head.split()[:3] == ["epoch", "step", "loss"]
    assert row.split()[:2] == ["1", "10"]


def test_steps_that_a_rollback_gave_up_are_left_out(tolaria, measured, run_dir):
    """They are in the journal twice, and in the table once; the epoch is not finished any more."""
    measured.submit(m.Rollback(step=0, tier=m.Tier.FULL), m.Actor(uid=0, program="test"), lambda _: None)
    measured.roll_back()
    assert tolaria("metrics", run_dir, "--csv").out.count("\n") == 1
    assert tolaria("metrics", run_dir, "--epochs", "--csv").out.count("\n") == 1
    assert "no step yet" in tolaria("metrics", run_dir).err


def test_curves_are_drawn_on_the_terminal(tolaria, measured, run_dir):
    """Loss, metrics, rate; one point is one mark, gaps are counted, and nothing is wider than the terminal."""
    said = tolaria("plot", run_dir)
    lines = said.out.splitlines()

    assert said.code == 0
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in said.out
    titles = [
        line.strip() for line in lines if line.strip() and "│" not in line and "┤" not in line and "─" not in line
    ]
    for title in ("loss (1 not finite)", "acc (1 not finite)", "metric/lr", "later", "lr"):
        assert any(title in one for one in titles), (title, titles)
    one_point = tolaria("plot", run_dir, "later").out
    assert one_point.count("x") == 1
    assert tolaria("plot", run_dir, "loss", "--log").code == 0


def test_what_has_no_value_is_said(tolaria, recorder, run_dir):
    """A metric that is only named has nothing to draw, and neither has a run without a step."""
    recorder.report(m.MetricsNamedReport(names=("acc",)))
    said = tolaria("plot", run_dir, "acc")
    assert (said.code, said.out) == (0, "")
    assert "acc: there is nothing to draw yet" in said.err


def test_an_image_is_written_and_another_kind_of_file_refused(tolaria, measured, run_dir, tmp_path):
    """PNG and SVG, by the name of the file; without matplotlib a sentence says how to get it."""
    pytest.importorskip("matplotlib")
    for name, begins in (("curves.png", b"\x89PNG"), ("curves.SVG", b"<?xml")):
        said = tolaria("plot", run_dir, "-o", tmp_path / name)
        assert said.code == 0, said.err
        assert (tmp_path / name).read_bytes().startswith(begins)
        assert f"{name} written: loss (1 not finite)" in said.out
    said = tolaria("plot", run_dir, "-o", tmp_path / "curves.jpg")
    assert (said.code, "must end in .png or .svg" in said.err) == (2, True)


def test_without_matplotlib_a_sentence_says_how_to_get_it(tolaria, measured, run_dir, tmp_path, monkeypatch):
    """And nothing is written."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = tolaria("plot", run_dir, "-o", tmp_path / "curves.png")
    assert said.code == 1
    assert "an image needs matplotlib" in said.err
    assert "pip install 'tolariad[plot]'" in said.err
    assert not (tmp_path / "curves.png").exists()


def test_a_spike_survives_the_thinning_of_a_long_run():
    """Of the steps that share a column, the least and the greatest stay, in order; a short curve is left alone."""
    points = [(float(n), 0.0) for n in range(1, 100_001)]
    points[70_000] = (70_001.0, 9.0)
    points[70_001] = (70_002.0, -9.0)
    found = thinned(points, 100)

    assert len(found) <= 200
    assert [point for point in found if point[1]] == [(70_001.0, 9.0), (70_002.0, -9.0)]
    assert found == sorted(found)
    assert thinned(points[:50], 100) == points[:50]
