"""A run may start with the weights of another run's checkpoint, which is recorded and never changes."""

from __future__ import annotations

import pytest

from tests.daemon.harness import of_type
from tolariad.cli.tolariad import main
from tolariad.core import messages as m


def test_the_parent_is_recorded_with_its_checkpoint_and_its_hash(start, run_dir, tmp_path):
    """The other run may be live; it is only read.

    A later start may repeat the same --from, but not name another one.
    """
    parent = start(environ={"FAKE_TRAINER": "crawl@15"})
    parent.until(lambda status: status["step"] >= 15)
    known = of_type(run_dir, m.CheckpointCommitted)
    child = tmp_path / "child"
    asked = {"folder": str(run_dir), "id": known[0].id}
    assert start(run_dir=child, task="digits", epochs=1, begin_from=asked).wait() == 0
    (begun,) = of_type(child, m.RunStarted)
    (parents,) = of_type(run_dir, m.RunStarted)
    assert begun.parent == parents.run_id != begun.run_id
    assert begun.began_from.checkpoint == known[0].id
    assert begun.began_from.manifest == known[0].manifest
    assert (begun.began_from.folder, begun.began_from.with_optimizer) == (str(run_dir), False)

    assert start(run_dir=child, begin_from={"folder": str(run_dir)}).wait() == 0
    for other in ({"id": "c000099"}, {"with_optimizer": True}):
        again = start(run_dir=child, begin_from={"folder": str(run_dir), **other})
        assert again.wait() == 78
        assert f"--from {run_dir}@{known[0].id}" in again.stderr
    nothing = start(run_dir=tmp_path / "other", task="digits", begin_from={"folder": str(run_dir), "id": "c000099"})
    assert nothing.wait() == 2
    assert "c000099" in nothing.stderr
    assert known[0].id in nothing.stderr


def test_a_run_that_is_not_there_is_a_usage_error(capsys, tmp_path):
    """So is --with-optimizer without --from."""
    for words in (["--from", f"{tmp_path}/nowhere"], ["--with-optimizer"]):
        with pytest.raises(SystemExit) as ended:
            main(["run", "--task", "digits", "--dir", str(tmp_path / "new"), *words])
        assert ended.value.code == 2
    assert "--with-optimizer needs --from" in capsys.readouterr().err
