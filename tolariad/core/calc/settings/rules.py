"""Rules over whole settings: relations between keys, differences, canonical forms, the keys without effect.

Promises: pure functions of settings. Equal settings have the same canonical form, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tolariad.core.calc.bounds import shown
from tolariad.core.calc.health.budgets import BUDGETS, FED_BREAKERS
from tolariad.core.calc.learning_rate.schedule import WHOLE_RUN, policy_named
from tolariad.core.calc.seeds.stages import GROWTH
from tolariad.core.calc.settings.addresses import receiver_problems
from tolariad.core.calc.settings.changes import RANKS, Change, change_of, is_under
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.optimization import LearningRate, Optimizer, OptimizerGroup, PartOptimizer
from tolariad.core.calc.settings.processes import Parallel
from tolariad.core.calc.settings.pruning import Prune, ShareFrom
from tolariad.core.calc.settings.ranks import rank_problems
from tolariad.core.calc.settings.reading import ConfigError, Problem, read_settings
from tolariad.core.calc.settings.strategies import strategy_problems
from tolariad.core.calc.settings.sums import exact_problems
from tolariad.core.calc.settings.task_defaults import TASK_DEFAULTS, TASK_OPTIONS, defaults_of
from tolariad.core.calc.settings.values import read_address, read_metric
from tolariad.core.calc.text.nearest import KEYS_ALIKE, nearest
from tolariad.core.calc.text.phrases import counted

# Keys for features that this version does not have. They are accepted; `tolariad check` lists those that are set.
WITHOUT_EFFECT: Final = ("prune.validation.fragmentation",)

# The arguments of each optimizer. torch would refuse others too, but only in the trainer, after the data is loaded.
_ADAM: Final = frozenset({"weight_decay", "eps", "betas"})
OPTIMIZER_ARGUMENTS: Final[Mapping[str, frozenset[str]]] = {
    "adamw": _ADAM | {"amsgrad"},
    "adam": _ADAM | {"amsgrad"},
    "cautious_adamw": _ADAM | {"mask_eps", "max_scale", "live_mean", "cautious_weight_decay"},
    "sgd": frozenset({"weight_decay", "momentum", "dampening", "nesterov"}),
    "rmsprop": frozenset({"weight_decay", "eps", "momentum", "alpha", "centered"}),
    "adagrad": frozenset({"weight_decay", "eps", "lr_decay", "initial_accumulator_value"}),
}
# The stages in which a seed exists.
_STAGES: Final = tuple(stage.name for stage in GROWTH)
# The fields of a group that are not arguments of the optimizer: pattern, name and rates.
_RATES_OWN: Final = ("base_lr", "policy", "warmup_epochs", "warmup_steps", "min_lr", "max_lr")
_GROUP_OWN: Final = frozenset({"match", "name", *_RATES_OWN})
_OWN_TASK: Final = re.compile(r"^(lightning:)?([A-Za-z_][\w.]*|[^:]+\.py):[A-Za-z_][\w.]*$")


def check(settings: Settings) -> list[Problem]:
    """Return the problems between values that are each valid by themselves."""
    return [
        *_task_problems(settings.task),
        *strategy_problems(settings.strategy),
        *_option_problems(settings),
        *_rate_problems(settings),
        *_optimizer_problems(settings.optimizer, "optimizer"),
        *(one for name, part in settings.optimizers.items() for one in _optimizer_problems(part, f"optimizers.{name}")),
        *_one_or_several(settings),
        *_breaker_problems(settings),
        *_metric_problems(settings.keep_best),
        *_prune_problems(settings.prune),
        *_address_problems(settings.metrics.listen),
        *exact_problems(settings.parallel, settings.accumulate),
        *receiver_problems(settings.telemetry),
        *rank_problems(settings),
        *(_no_stage(name) for name in settings.seeds.stage_weights if name not in _STAGES),
    ]


def _address_problems(listen: str | None) -> list[Problem]:
    try:
        if listen is not None:
            read_address(listen)
    except ValueError as error:
        return [Problem(path="metrics.listen", what=str(error))]
    return []


def require_task(settings: Settings) -> str:
    """Return the task's name. Raises ConfigError if the configuration names none."""
    if settings.task is None:
        what = f"is required: {', '.join(TASK_DEFAULTS)}, package.module:Name or ./file.py:Name"
        raise ConfigError([Problem(path="task", what=what)])
    return settings.task


def optimizer_arguments(options: msgspec.Struct) -> dict[str, Any]:
    """Return the arguments that are set for the optimizer or one of its groups, without names and rates."""
    given = msgspec.structs.asdict(options)
    return {key: value for key, value in given.items() if value is not None and key not in {*_GROUP_OWN, "groups"}}


def implied_warmup(settings: Settings) -> int:
    """Return the warm-up of a user who sets none: the task's, else 10 epochs; at most a tenth of the run, rounded up.

    A run of one epoch has none, nor has a policy that begins with a rise of its own.
    """
    if settings.epochs == 1 or policy_named(settings.learning_rate.policy) in WHOLE_RUN:
        return 0
    by_task = defaults_of(settings.task).get("learning_rate", {}).get("warmup_epochs", LearningRate().warmup_epochs)
    return min(int(by_task), -(-settings.epochs // 10))


def with_implied_warmup(settings: Settings) -> Settings:
    """Return the settings of a user who sets no warm-up in epochs: one in steps takes its place."""
    counts_steps = settings.learning_rate.warmup_steps is not None
    return _with_warmup(settings, 0 if counts_steps else implied_warmup(settings))


def with_warmup_of(settings: Settings, former: Settings) -> Settings:
    """Return the settings with the warm-up of the run, if none was set, then or now.

    Another number of epochs then changes no rate of a step that is made.
    """
    is_implied = all(one.learning_rate.warmup_epochs == implied_warmup(one) for one in (settings, former))
    if settings.learning_rate.warmup_steps is not None:
        return settings
    if not is_implied or settings.learning_rate.policy != former.learning_rate.policy:
        return settings
    return _with_warmup(settings, former.learning_rate.warmup_epochs)


def rates_of(settings: Settings, part: PartOptimizer) -> LearningRate:
    """Return the rates of a part's optimizer: its own keys, and those of `learning_rate` for what it leaves out."""
    given = {key: getattr(part, key) for key in _RATES_OWN if getattr(part, key) is not None}
    if "warmup_epochs" in given:
        given.setdefault("warmup_steps", None)
    return msgspec.structs.replace(settings.learning_rate, **given)


def with_functions(settings: Settings, pinned: Callable[[str], str]) -> Settings:
    """Return the settings with `pinned(policy)` for each policy that is a function."""

    def changed(one: msgspec.Struct, policy: str | None) -> Any:
        return one if policy is None or ":" not in policy else msgspec.structs.replace(one, policy=pinned(policy))

    def in_groups(optimizer: Any) -> Any:
        groups = tuple(changed(group, group.policy) for group in optimizer.groups)
        return msgspec.structs.replace(optimizer, groups=groups)

    return msgspec.structs.replace(
        settings,
        learning_rate=changed(settings.learning_rate, settings.learning_rate.policy),
        optimizer=in_groups(settings.optimizer),
        optimizers={name: changed(in_groups(part), part.policy) for name, part in settings.optimizers.items()},
    )


def _with_warmup(settings: Settings, epochs: int) -> Settings:
    return msgspec.structs.replace(
        settings, learning_rate=msgspec.structs.replace(settings.learning_rate, warmup_epochs=epochs)
    )


def _warmup_epochs(one: LearningRate | OptimizerGroup) -> int:
    return 0 if one.warmup_steps is not None else one.warmup_epochs or 0


def rate_notes(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each part of the schedules that does not do what its key says."""
    general = settings.learning_rate
    rates = [rates_of(settings, part) for part in settings.optimizers.values()] or [general]
    groups = [group for one in (settings.optimizer, *settings.optimizers.values()) for group in one.groups]
    warmups = [0 if policy_named(one.policy) in WHOLE_RUN else _warmup_epochs(one) for one in rates]
    warmups += [_warmup_epochs(group) for group in groups]
    if max(warmups) >= settings.epochs:
        yield (
            f"a warm-up of {counted(max(warmups), 'epoch')} does not fit into a run of "
            f"{counted(settings.epochs, 'epoch')}: "
            "it is shortened to half the run"
        )
    owners = [(one.policy, one.warmup_steps or one.warmup_epochs) for one in rates]
    owners += [(one.policy or general.policy, one.warmup_steps or one.warmup_epochs or 0) for one in groups]
    for policy in dict.fromkeys(policy for policy, warmup in owners if policy_named(policy) in WHOLE_RUN and warmup):
        yield f"a warm-up has no effect on the policy {policy}, whose curve begins at the first step"
    if general.num_cycles == 1 and any(policy == "cosine_restarts" for policy, _ in owners):
        yield (
            "the policy cosine_restarts has no restart with learning_rate.num_cycles 1, the default of transformers: "
            "set it to the number of cosines in the run"
        )


def resolved_json(settings: Settings) -> bytes:
    """Return the whole configuration in canonical form: every key, sorted, indented. It is a valid configuration."""
    # Convert to builtins first: Struct fields are encoded in declared order even with order="sorted".
    document = msgspec.json.encode({"tolaria": msgspec.to_builtins(settings, str_keys=True)}, order="sorted")
    return msgspec.json.format(document, indent=2) + b"\n"


def read_resolved(document: bytes) -> Settings:
    """Read the output of `resolved_json`, also of an older version. Raises ConfigError for anything else."""
    try:
        outer = msgspec.json.decode(document, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError([Problem(path="", what=f"the resolved configuration is not JSON: {error}")]) from error
    return read_settings(outer.get("tolaria", {}))


def difference(a: Settings, b: Settings) -> list[str]:
    """Return the dotted keys whose values differ, sorted. A list that is empty on one side is one key."""
    left, right = values_of(a), values_of(b)
    keys = {key for key in left.keys() | right.keys() if left.get(key) != right.get(key)}
    return sorted(key for key in keys if key.partition("[")[0] not in keys - {key})


def values_of(settings: Settings) -> dict[str, Any]:
    """Return the values of all settings by dotted key."""
    return dict(_flat(msgspec.to_builtins(settings)))


def exact_json(settings: Settings) -> bytes:
    """Return, in canonical form, the settings that a step's result may depend on: all but those that are free.

    `epochs` and `stop.steps` are left out too, though learning rates may be computed for them: the trainer adds the
    length that it computed them for.
    """
    exact = {key: value for key, value in values_of(settings).items() if change_of(key) is not Change.FREE}
    if settings.parallel == Parallel():
        # So a run of one process has the hash that it had before there were ranks.
        exact = {key: value for key, value in exact.items() if not is_under(key, ("parallel",))}
    elif settings.parallel.exact:
        # The bits do not depend on it, and it is that of each start.
        exact.pop(RANKS)
    return msgspec.json.encode(exact, order="sorted")


def without_effect(settings: Settings) -> list[str]:
    """Return the keys that differ from their default but have no effect in this version."""
    changed = difference(settings, Settings())
    return [key for key in changed if is_under(key, WITHOUT_EFFECT)]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys below `path` with their values. An empty mapping has none."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(one, dict) for one in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{index}]")
    else:
        yield path, value


def _task_problems(task: str | None) -> list[Problem]:
    if task is None or task in TASK_DEFAULTS or _OWN_TASK.match(task):
        return []
    names = "package.module:Name, ./file.py:Name or lightning:./file.py:Module"
    what = f"must be {', '.join(TASK_DEFAULTS)}, {names}, got {shown(task)}"
    return [Problem(path="task", what=what, nearest=nearest(task, TASK_DEFAULTS))]


def _option_problems(settings: Settings) -> list[Problem]:
    """Return the problems of options: names that a built-in task does not have, and keys that contain their value."""
    problems = []
    for key, value in settings.task_options.items():
        name, colon, rest = key.partition(":")
        if colon and value is None:
            what = f"is a key without a value: YAML needs a space after the colon, as in `{{{name}: {rest}}}`"
            problems.append(Problem(path=f"task_options.{key}", what=what))
    if settings.task not in TASK_DEFAULTS:
        return problems
    known = TASK_OPTIONS.get(settings.task or "", {})
    reported = {problem.path for problem in problems}
    for key, value in settings.task_options.items():
        path = f"task_options.{key}"
        if key not in known and path not in reported:
            what = f"the task {settings.task} has no such option; its options: {', '.join(known) or 'none'}"
            problems.append(Problem(path=path, what=what, nearest=nearest(key, known)))
        elif key in known and value not in known[key]:
            problems.append(Problem(path=path, what=f"must be one of {', '.join(known[key])}, got {shown(value)}"))
    return problems


def _rate_problems(settings: Settings) -> list[Problem]:
    general = settings.learning_rate
    owners = [("learning_rate", general), *_groups_rates(settings.optimizer, general, "optimizer")]
    for name, part in settings.optimizers.items():
        rates = rates_of(settings, part)
        owners += [(f"optimizers.{name}", rates), *_groups_rates(part, rates, f"optimizers.{name}")]
    problems = []
    for path, rates in owners:
        # A rate of exactly 0 freezes a group; min_lr does not apply to it.
        if 0 < rates.base_lr < rates.min_lr:
            problems.append(Problem(path=f"{path}.base_lr", what=f"{rates.base_lr:g} is below min_lr {rates.min_lr:g}"))
        if rates.max_lr is not None and rates.base_lr > rates.max_lr:
            problems.append(Problem(path=f"{path}.base_lr", what=f"{rates.base_lr:g} is above max_lr {rates.max_lr:g}"))
    problems += [
        Problem(path=f"{path}.warmup_steps", what="and warmup_epochs are both set: set one of them, the other to 0")
        for path, one in _with_a_warmup(settings)
        if one.warmup_steps and one.warmup_epochs
    ]
    return problems


def _with_a_warmup(settings: Settings) -> Iterator[tuple[str, LearningRate | OptimizerGroup | PartOptimizer]]:
    yield "learning_rate", settings.learning_rate
    for name, part in settings.optimizers.items():
        yield f"optimizers.{name}", part
    for path, optimizer in (("optimizer", settings.optimizer), *_named_parts(settings)):
        for number, group in enumerate(optimizer.groups):
            yield f"{path}.groups[{number}]", group


def _named_parts(settings: Settings) -> Iterator[tuple[str, Optimizer]]:
    for name, part in settings.optimizers.items():
        yield f"optimizers.{name}", part


def _groups_rates(optimizer: Optimizer, general: LearningRate, path: str) -> Iterator[tuple[str, LearningRate]]:
    """Yield the path and the rates of each of an optimizer's groups."""
    for number, group in enumerate(optimizer.groups):
        own = {key: getattr(group, key) for key in ("base_lr", "min_lr", "max_lr")}
        given = {key: value for key, value in own.items() if value is not None}
        yield f"{path}.groups[{number}]", msgspec.structs.replace(general, **given)


def _optimizer_problems(optimizer: Optimizer, path: str) -> list[Problem]:
    known = OPTIMIZER_ARGUMENTS[optimizer.name]
    owners = [(path, optimizer_arguments(optimizer))]
    owners += [(f"{path}.groups[{n}]", optimizer_arguments(group)) for n, group in enumerate(optimizer.groups)]
    problems = [
        Problem(path=f"{at}.{key}", what=f"{optimizer.name} has no such argument; it has {', '.join(sorted(known))}")
        for at, given in owners
        for key in given
        if key not in known
    ]
    if optimizer.nesterov and not optimizer.momentum:
        problems.append(Problem(path=f"{path}.nesterov", what=f"needs {path}.momentum above 0"))
    if optimizer.lr_decay:
        what = "must be 0: only the rate controller changes rates; use learning_rate.policy"
        problems.append(Problem(path=f"{path}.lr_decay", what=what))
    return problems


def _one_or_several(settings: Settings) -> list[Problem]:
    if not settings.optimizers or settings.optimizer == Optimizer():
        return []
    what = "is not used if there are `optimizers`; give its keys to each of them"
    return [Problem(path="optimizer", what=what)]


def _metric_problems(keep_best: str | None) -> list[Problem]:
    try:
        if keep_best is not None:
            read_metric(keep_best)
    except ValueError as error:
        return [Problem(path="keep_best", what=str(error))]
    return []


def _prune_problems(prune: Prune) -> Iterator[Problem]:
    lists: dict[str, tuple[ShareFrom, ...]] = {"budgets": prune.budgets, "caps": prune.caps}
    for name, entries in lists.items():
        epochs = [entry.epoch for entry in entries]
        if epochs != sorted(set(epochs)):
            yield Problem(path=f"prune.{name}", what=f"must be in ascending order of epochs, got {shown(epochs)}")
    shares = [entry.share for entry in prune.caps]
    if shares != sorted(shares):
        yield Problem(path="prune.caps", what=f"may not fall: pruned channels do not come back; got {shown(shares)}")


def _no_stage(name: str) -> Problem:
    what = f"no seed is in a stage of this name; the stages are {', '.join(_STAGES)}"
    return Problem(path=f"seeds.stage_weights.{name}", what=what, nearest=nearest(name.upper(), _STAGES, KEYS_ALIKE))


def _breaker_problems(settings: Settings) -> list[Problem]:
    return [*(_unfed(name) for name in settings.breakers if name not in FED_BREAKERS), *_threshold_problems(settings)]


def _unfed(name: str) -> Problem:
    path = f"breakers.{name}"
    if name not in BUDGETS:
        what = f"there is no breaker with this name; the breakers are {', '.join(FED_BREAKERS)}"
        return Problem(path=path, what=what, nearest=nearest(name, FED_BREAKERS, KEYS_ALIKE))
    why = BUDGETS[name].unmeasured or "an overrun of this budget is recorded, but does not count as a failure"
    return Problem(path=path, what=f"this breaker would never open: {why}")


def _threshold_problems(settings: Settings) -> list[Problem]:
    breaker = settings.breakers.get("lr")
    threshold = settings.learning_rate.circuit_breaker_threshold
    default = Settings().learning_rate.circuit_breaker_threshold
    if breaker is None or threshold in {default, breaker.failures}:
        return []
    what = f"is {breaker.failures}, but learning_rate.circuit_breaker_threshold is {threshold}; set only one of them"
    return [Problem(path="breakers.lr.failures", what=what)]
