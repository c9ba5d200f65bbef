"""Which trainings there are: each with the seeds that it runs with. None of them chose a constant of the detector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.study.trainings import reinforced, supervised, unsupervised
from tests.study.trainings.base import Training

SEEDS = (1, 2)


def _of(
    group: str, make: Callable[..., Any], *options: dict[str, Any], unit: float | None = None
) -> Iterator[Training]:
    for given in options:
        named = ", ".join(f"{key} {value}" for key, value in given.items())
        yield Training(group, f"{make.__name__} {named}".strip(), make, given, unit)


HEALTHY: tuple[Training, ...] = (
    *_of(
        "GAN",
        unsupervised.adversarial,
        {"shown": "both"},
        {"shown": "turns"},
        {"shown": "generator"},
        {"shown": "both", "game": "hinge"},
        {"shown": "both", "game": "wasserstein"},
    ),
    *_of(
        "two heads",
        supervised.two_heads,
        {"share": 0.05, "times": 5.0},
        {"share": 0.02, "times": 5.0},
        {"share": 0.1, "times": 3.0},
        {"share": 0.05, "times": 20.0},
    ),
    *_of(
        "curriculum",
        supervised.curriculum,
        {"harder": "noise"},
        {"harder": "hidden"},
        {"harder": "noise", "stage": 150},
    ),
    *_of("curriculum", supervised.longer, {"by": 1, "first": 4}),
    *_of(
        "warm restarts",
        supervised.restarts,
        {"period": 400},
        {"period": 150},
        {"period": 400, "optimizer": "adam", "rate": 1e-2},
    ),
    *_of(
        "DQN",
        reinforced.q_learning,
        {"every": 200},
        {"every": 50},
        {"every": 200, "error": "squared"},
    ),
    *_of("policy gradient", reinforced.policy_gradient, {}),
    *_of("policy gradient", reinforced.policy_gradient, {"rate": 1e-2}, unit=1.0),
    *_of("contrastive", unsupervised.contrast, {}, {"temperature": 0.07}, {"growing": True}),
    *_of(
        "fine-tuning",
        supervised.fine_tune,
        {"how": "rotated"},
        {"how": "new head"},
        {"how": "all layers", "rate": 3e-3},
    ),
    *_of(
        "memorised",
        supervised.memorise,
        {"samples": 64},
        {"samples": 200, "rate": 1e-2},
        {"samples": 64, "optimizer": "momentum", "rate": 0.1},
    ),
    *_of("memorised", supervised.modular, {}),
    *_of(
        "ordinary",
        supervised.classify,
        {"optimizer": "adam"},
        {"optimizer": "sgd", "rate": 0.03, "batch": 1},
        {"optimizer": "momentum", "rate": 0.01, "batch": 8, "dropout": 0.2},
        {"optimizer": "adamw", "rate": 1e-2, "wrong": 0.3, "warm_up": 300},
    ),
    *_of("ordinary", supervised.convolve, {}),
    *_of("ordinary", supervised.regress, {"tail": 3.0}, {"tail": 1.5}),
    *_of("ordinary", unsupervised.characters, {}),
    *_of("autoencoder", unsupervised.encode, {}, {"weight": 4.0}),
    *_of("likelihood", unsupervised.density, {}),
    *_of("likelihood", unsupervised.density, {"rate": 5e-3}, unit=1.0),
)

# Stages whose data an untrained model would do as well on: the loss jumps from nearly nothing to that of a beginning.
# Neither loss nor gradient norm tells this from a network that a fault has emptied. Such a task sets `detect.rollback:
# false`.
HARD: tuple[Training, ...] = (
    *_of("new classes", supervised.curriculum, {"harder": "classes", "stages": 4}),
    *_of("longer by a half", supervised.longer, {"by": 2, "first": 2}),
)

# The runs into which a rate far too high is put, in the middle.
STRUCK: tuple[Training, ...] = (
    *_of("fault", supervised.classify, {"optimizer": "adam"}, {"optimizer": "sgd", "rate": 0.1, "batch": 16}),
    *_of("fault", supervised.two_heads, {"steps": 1500}),
    *_of("fault", supervised.regress, {}),
    *_of("fault", supervised.memorise, {"steps": 1500}),
    *_of("fault", unsupervised.adversarial, {"steps": 1500}),
    *_of("fault", unsupervised.contrast, {}),
    *_of("fault", unsupervised.encode, {"steps": 1500}),
    *_of("fault", unsupervised.density, {}, unit=1.0),
    *_of("fault", reinforced.q_learning, {"steps": 1500}),
)
STRUCK_AT = 700
FACTORS = (1000.0, 30.0)
