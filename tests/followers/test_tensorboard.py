"""TensorBoard's files: exact after every kill, a folder a branch, and never those of another run."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys

import pytest
from msgspec.structs import replace

from tests.followers.recording import records, values, went_back, write_journal
from tests.waiting import wait_for
from tolariad.followers import tfevents
from tolariad.followers.following import follow
from tolariad.followers.place import PlaceTaken
from tolariad.followers.refused import FollowRefused
from tolariad.followers.tensorboard import TensorBoardOutput


@pytest.fixture(scope="module")
def events():
    return went_back().events


@pytest.fixture(scope="module")
def journal(events, tmp_path_factory):
    return write_journal(events, tmp_path_factory.mktemp("run") / "journal")


def copied(journal, root, output=TensorBoardOutput):
    return follow(journal, lambda about, branch_of: output(root, about, branch_of), over=lambda: True)


def files_in(root):
    """Return the content of each event file by its path, the run's own first."""
    paths = sorted(root.rglob("*tfevents*"), key=lambda path: len(path.parts))
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def whole(journal, tmp_path_factory):
    """What a follower writes that nothing interrupts."""
    root = tmp_path_factory.mktemp("whole")
    copied(journal, root)
    return files_in(root)


def test_each_branch_has_a_folder_and_the_first_one_is_the_runs(whole):
    """The steps of the losses in each; the second folder is named after the step it began after."""
    folders = {path.rpartition("/")[0]: content for path, content in whole.items()}
    steps = {
        folder: [step for step, tag, _ in values(content) if tag == "train/loss"] for folder, content in folders.items()
    }

    assert list(steps.values()) == [list(range(1, 11)), list(range(5, 13))]
    first, second = steps
    assert second == f"{first}/branch-1-after-step-4"
    assert all(records(content)[0].endswith(b"brain.Event:2") for content in whole.values())


def test_words_and_closing_figures_are_texts(whole):
    """A note where it was given, the summary on the branch on which the run ended."""
    first, second = (values(content) for content in whole.values())

    assert any(tag == "notes" and "the loss | looks odd" in text for _, tag, text in first)
    assert any(tag == "rollbacks" and "too noisy" in text for _, tag, text in first)
    (summary,) = [text for _, tag, text in second if tag == "summary"]
    assert "| phase | completed |" in summary


class Killed(Exception):
    """In place of a SIGKILL."""


def test_a_follower_that_is_killed_at_any_record_goes_on_exactly(journal, whole, tmp_path):
    """Twenty lives, each ended at a drawn record or at the sync that follows; at last every byte is as without."""
    seed = int(os.environ.get("TOLARIA_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    draw = random.Random(seed)

    class Mortal(TensorBoardOutput):
        def put(self, record):
            if draw.random() < 0.05:
                raise Killed
            super().put(record)
            if draw.random() < 0.1:
                self._write()

        def flush(self, seq):
            if draw.random() < 0.3:
                self._write()
                raise Killed
            super().flush(seq)

    for _ in range(20):
        try:
            copied(journal, tmp_path, Mortal)
        except Killed:
            continue
    copied(journal, tmp_path)

    assert files_in(tmp_path) == whole


def test_a_process_that_is_killed_goes_on_from_its_position(events, whole, tmp_path):
    """SIGKILL while the journal is written; the next follower writes every byte once."""
    half = write_journal(events[: len(events) // 2], tmp_path / "half" / "journal")
    command = (sys.executable, "-m", "tolariad.cli.following", "--to=tensorboard", f"--uri={tmp_path / 'out'}")
    with subprocess.Popen([*command, "--dir", half], stdin=subprocess.PIPE) as process:
        wait_for(lambda: list((tmp_path / "out").rglob("tolaria-position.json")), "a position")
        process.send_signal(signal.SIGKILL)
    (half.parent).rename(tmp_path / "former")
    write_journal(events, tmp_path / "half" / "journal")
    subprocess.run([*command, "--dir", tmp_path / "half"], stdin=subprocess.DEVNULL, check=True)

    assert files_in(tmp_path / "out") == whole


def test_output_that_was_lost_is_written_again(journal, whole, tmp_path):
    """A file that is shorter than the position says, and one that is gone."""
    copied(journal, tmp_path)
    first, second = sorted(tmp_path.rglob("*tfevents*"))
    os.truncate(first, 100)
    second.unlink()
    copied(journal, tmp_path)

    assert files_in(tmp_path) == whole


def test_two_followers_never_write_to_one_folder(journal, tmp_path):
    """The second is refused with a sentence, and changes nothing."""

    class Second(TensorBoardOutput):
        def flush(self, seq):
            with pytest.raises(PlaceTaken, match="another follower writes to"):
                copied(journal, tmp_path)
            super().flush(seq)

    copied(journal, tmp_path, Second)


def test_another_run_of_the_same_name_gets_a_folder_beside(events, journal, whole, tmp_path):
    """A run that was deleted and begun anew does not add to the former one's curves."""
    copied(journal, tmp_path / "out")
    (started, *others) = events
    other = write_journal([replace(started, run_id="ff" * 16), *others], tmp_path / "other")
    copied(other, tmp_path / "out")
    found = files_in(tmp_path / "out")

    assert {path: found[path] for path in whole} == whole
    assert len(found) == 2 * len(whole)


def test_a_journal_that_ends_before_the_position_is_refused(events, journal, tmp_path):
    """A repair has given up events: what was drawn cannot be taken back."""
    copied(journal, tmp_path / "out")
    shorter = write_journal(events[:-5], tmp_path / "shorter")
    with pytest.raises(FollowRefused, match="repaired"):
        copied(shorter, tmp_path / "out")


@pytest.mark.parametrize("value", [0.0, -1.5, math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300])
def test_any_number_and_any_name_are_written(value):
    """A number beyond 32 bits becomes infinite; names and texts may hold anything."""
    names = ("a", "ä/ö" * 100, "")
    content = tfevents.first(1) + tfevents.scalars(2**62, 2**40, [(name, value) for name in names])
    content += tfevents.text(1, 0, "t", "x\ny|\udc80")
    found = values(content)

    assert [(step, tag) for step, tag, _ in found[:3]] == [(2**40, name) for name in names]
    limit = math.copysign(math.inf, value) if abs(value) > 1e38 else value
    assert all(math.isnan(one) if math.isnan(value) else one == pytest.approx(limit) for _, _, one in found[:3])
    assert found[3] == (0, "t", "x\ny|?")
