"""A feed that is stopped, and continued in a new process."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch

from tests.trainer.data.samplers import as_in_a_new_process, move
from tolariad.trainer.checkpoints.tree import decode_tree, encode_tree, made
from tolariad.trainer.data.loaders import feed_of


def feed_over(make, *, checked=False, **options):
    """Return a feed as a new process makes it: the script seeds, and builds its objects."""
    as_in_a_new_process()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    data = make(**options)
    feed = feed_of(data, batch_size=4, workers=0, rng_seed=3, shuffle=True)
    if checked:
        feed.check(())
    return data, feed


def taken(feed, epoch, start=0, *, hook=lambda _: None, count=None):
    """Return the batches of an epoch as lists, or so many of them. `hook` is called after each."""
    found = []
    for batch in itertools.islice(feed.epoch(epoch, start), count):
        found.append(batch.tolist())
        hook(batch)
    return found


def through_a_checkpoint(state):
    """Return the state as a checkpoint saves and restores it."""
    body, tensors = encode_tree({"data": state}, "data")
    return made(decode_tree(body, tensors)["data"], torch.device("cpu"))


def differing_stops(make, stops, *, moves=False, checked=False, **options):
    """Return the stops (epoch, batch) after which a new process goes on otherwise, and what the feeds found.

    None stands for all stops. A stop is compared to the end of the epoch after it, up to the third.
    """

    def hook_of(data):
        return (lambda batch: move(data, batch)) if moves else (lambda _: None)

    data, feed = feed_over(make, checked=checked, **options)
    whole = {epoch: taken(feed, epoch, hook=hook_of(data)) for epoch in (1, 2, 3)}
    found, differing = set(feed.findings), []
    feed.end_workers()
    if stops is None:
        stops = [(epoch, batch) for epoch in (1, 2) for batch in range(len(whole[epoch]) + 1)]
    for epoch, wanted in stops:
        batch = min(wanted, len(whole[epoch]))
        data, feed = feed_over(make, checked=checked, **options)
        for before in range(1, epoch):
            taken(feed, before, hook=hook_of(data))
        running = feed.epoch(epoch, 0) if batch else iter(())
        for one in itertools.islice(running, batch):
            hook_of(data)(one)
        state = through_a_checkpoint(feed.state())
        del running
        feed.end_workers()
        data, feed = feed_over(make, **options)
        feed.load_state(state)
        rest = taken(feed, epoch, batch, hook=hook_of(data))
        after = taken(feed, epoch + 1, hook=hook_of(data)) if epoch < 3 else []
        feed.end_workers()
        found |= set(feed.findings)
        if rest != whole[epoch][batch:] or after != whole.get(epoch + 1, []):
            differing.append((epoch, batch, rest == whole[epoch][batch:]))
    return differing, found, whole
