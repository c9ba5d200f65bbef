"""A sharded parameter is updated like the whole one: the mask's mean covers all parts."""

from __future__ import annotations

import os

import torch


def test_two_shards_move_as_the_whole_tensor(tmp_path, template):
    """Two processes over gloo, this one and a child; rows sharded or replicated, in chunks and together, both means:
    the whole tensor's step to 1e-12. A mean over each part would differ by a large factor: only every third row has a
    gradient.
    """
    # It loads torch.distributed, which takes seconds: in the worker that runs this test only.
    from tests.trainer.optim import shards

    child = template.start(
        ["1", "2", str(tmp_path)], environment=os.environ, folder=tmp_path, log=1, shells=0, program=shards.__file__
    )
    try:
        ends = shards.rank(0, 2, tmp_path)
        assert child.wait(timeout=60) == 0
    finally:
        child.kill()
        child.wait()

    for options, results in zip(shards.OPTIONS, ends, strict=True):
        whole, kept = shards.trained(torch.clone, **options)
        assert len(results) == 2
        for parameter, fraction in results:
            assert (parameter - whole).abs().max().item() < 1e-12
            assert fraction == kept
    halves = [shards.trained(lambda t, part=part: t[part].clone())[0] for part in (slice(0, 5), slice(5, 10))]
    assert (torch.cat(halves) - ends[0][0][0]).abs().max().item() > 1e-3
