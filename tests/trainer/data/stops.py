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

    None stands for all stops. One process is asked for its state at each; one more is asked at a stop in the middle
    only. A stop is compared to the end of the epoch after it, up to the third.
    """

    def hook_of(data):
        return (lambda batch: move(data, batch)) if moves else (lambda _: None)

    data, feed = feed_over(make, checked=checked, **options)
    whole = {epoch: taken(feed, epoch, hook=hook_of(data)) for epoch in (1, 2, 3)}
    found, differing = set(feed.findings), []
    feed.end_workers()
    every = [(epoch, batch) for epoch in (1, 2) for batch in range(len(whole[epoch]) + 1)]
    wanted = every if stops is None else [(epoch, min(batch, len(whole[epoch]))) for epoch, batch in stops]
    states = {}
    for asked in [every, [every[len(every) * 2 // 3]]] if stops is None else [[one] for one in wanted]:
        data, feed = feed_over(make, checked=checked, **options)
        states |= _states_at(feed, asked, hook_of(data))
        found |= set(feed.findings)
        feed.end_workers()
    for epoch, batch in wanted:
        data, feed = feed_over(make, **options)
        feed.load_state(states[epoch, batch])
        rest = taken(feed, epoch, batch, hook=hook_of(data))
        after = taken(feed, epoch + 1, hook=hook_of(data)) if epoch < 3 else []
        feed.end_workers()
        found |= set(feed.findings)
        if rest != whole[epoch][batch:] or after != whole.get(epoch + 1, []):
            differing.append((epoch, batch, rest == whole[epoch][batch:]))
    return differing, found, whole


def _states_at(feed, stops, hook):
    """Train up to the last of these stops. Return the state at each, as a checkpoint has it."""
    states = {}
    for epoch in range(1, stops[-1][0] + 1):
        here = [batch for at, batch in stops if at == epoch]
        if 0 in here:
            states[epoch, 0] = through_a_checkpoint(feed.state())
        if here == [0]:
            break
        for number, batch in enumerate(feed.epoch(epoch, 0), 1):
            hook(batch)
            if number in here:
                states[epoch, number] = through_a_checkpoint(feed.state())
            if (epoch, number) == stops[-1]:
                break
    return states
