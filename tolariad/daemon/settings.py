"""The configuration of this start: read, completed, and written into the run's folder.

Promises: every problem of it is a StartRefused. `changes.py` beside this compares it with the configuration of a run.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tolariad import config, run_files
from tolariad.core import messages as m
from tolariad.core import state as st
from tolariad.core.calc.health.breaker import breaker_rule
from tolariad.core.calc.pruning.notes import prune_notes
from tolariad.core.calc.pruning.plan import plan_of
from tolariad.core.calc.run.exits import EXIT_CONFIG
from tolariad.core.calc.seeds.notes import seed_notes
from tolariad.core.calc.seeds.stages import Learning
from tolariad.core.calc.settings import ranks, rules, strategies
from tolariad.core.calc.settings.copies import SNAPSHOT_SHARE
from tolariad.core.calc.settings.model import Settings
from tolariad.core.calc.settings.reading import ConfigError, read_settings
from tolariad.core.calc.settings.values import DEFAULT_METRIC, Better, read_metric
from tolariad.daemon.request import RunRequest, StartRefused, refusing
from tolariad.rate_functions import FunctionRefused, pinned

GIVEN_NAME: Final = "config.yaml"
RESOLVED_NAME: Final = "config.resolved.json"


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration with every key, as a value and as the canonical text for the journal.

    `notes` are to be logged.
    """

    settings: Settings
    text: str
    hash: str
    policy: m.Policy
    notes: tuple[str, ...] = ()


def load(request: RunRequest, journaled: str | None = None) -> Settings:
    """Return the requested settings; the seed may still be None. Raises StartRefused.

    If no configuration is given, the run's own is used: `journaled` or, while that is None, its copy in the run's
    folder. The copy may be from a start that ended before its change was recorded.
    """
    if request.settings is not None:
        # A program has made them: check types and ranges.
        with refusing(EXIT_CONFIG, "", ConfigError):
            return read_settings(msgspec.to_builtins(request.settings))
    sets = list(request.sets)
    if request.task is not None:
        sets.insert(0, f"task={request.task}")
    if request.epochs is not None:
        sets.append(f"epochs={request.epochs}")
    source: Path | dict[str, Any] = {"tolaria": {}}
    if request.config is not None:
        source = request.config
    elif request.task is None and journaled:
        source = msgspec.json.decode(journaled)
    elif request.task is None and (request.run_dir / RESOLVED_NAME).exists():
        source = _kept(request.run_dir)
    with refusing(EXIT_CONFIG, "", ConfigError):
        settings = config.load(source, sets)
        if settings.task is None and source == {"tolaria": {}}:
            why = f"there is no run in {request.run_dir} that could go on"
            raise StartRefused(EXIT_CONFIG, why, "to begin one there, give a configuration or --task")
        rules.require_task(settings)
        return settings


def _kept(run_dir: Path) -> dict[str, Any]:
    """Return the configuration in the run's folder. Raises StartRefused."""
    path = run_dir / RESOLVED_NAME
    try:
        return msgspec.json.decode(run_files.read_file(run_dir, RESOLVED_NAME, config.CONFIG_BYTES_MAX), type=dict)
    except (OSError, msgspec.MsgspecError) as error:
        why = f"{path} cannot be read: {error}; give a configuration, or remove the file: the journal has a copy"
        raise StartRefused(EXIT_CONFIG, why) from error


def resolve(settings: Settings, rng_seed: int | None = None, former: str = "") -> Resolved:
    """Complete the settings: the seed, the warm-up and the hashes of rate functions. Raises StartRefused.

    `rng_seed`, `former`: the run's own seed and configuration. They decide if the settings are silent about the seed or
    the warm-up; a new run draws its seed.
    """
    if settings.rng_seed is None:
        settings = replace(settings, rng_seed=secrets.randbits(63) if rng_seed is None else rng_seed)
    with refusing(EXIT_CONFIG, "learning_rate", FunctionRefused):
        settings = rules.with_functions(settings, pinned)
    own = _settings_of(former)
    settings = settings if own is None else rules.with_warmup_of(settings, own)
    # With exact sums the number of ranks changes nothing but the time, so it decides about nothing here.
    is_group = settings.parallel.ranks > 1 or settings.parallel.exact
    if is_group:
        settings = ranks.with_leaves(ranks.for_ranks(settings))
    notes = [f"{key} is set by the environment ({variable})" for key, variable in config.from_environment().items()]
    notes += [*rules.rate_notes(settings), *seed_notes(settings), *prune_notes(settings)]
    if is_group:
        who = f"{settings.parallel.ranks} ranks train together" if settings.parallel.ranks > 1 else "The sums are exact"
        notes.append(f"{who}: {ranks.WITHOUT_FINDINGS}")
    idle = rules.without_effect(settings)
    if idle:
        notes.append(f"these keys have no effect in this version: {', '.join(idle)}")
    text = rules.resolved_json(settings)
    return Resolved(
        settings=settings,
        text=text.decode(),
        hash=hashlib.sha256(text).hexdigest(),
        policy=policy_of(settings),
        notes=tuple(notes),
    )


def _settings_of(former: str) -> Settings | None:
    """Return the run's own settings; None for a new run, or if this version cannot read them."""
    try:
        return rules.read_resolved(former.encode()) if former else None
    except ConfigError:
        return None


def policy_of(settings: Settings) -> m.Policy:
    """Return the part of the settings that the kernel's decisions use."""
    asked = settings.keep_best or (DEFAULT_METRIC if settings.stop.patience else "")
    metric, better = read_metric(asked) if asked else ("", Better.MIN)
    breaker = breaker_rule(settings, "lr")
    return m.Policy(
        epochs=settings.epochs,
        checkpoint_every_epochs=settings.checkpoint_interval_epochs,
        checkpoint_interval_s=settings.checkpoint.interval_s,
        checkpoint_gap_s=settings.checkpoint.min_gap_s,
        checkpoint_every_steps=settings.checkpoint.interval_steps or 0,
        keep_last=settings.checkpoint.keep_last,
        keep=settings.checkpoint.keep,
        keep_days=settings.checkpoint.keep_days,
        importance_days=settings.checkpoint.importance_days,
        quota=int(settings.checkpoint_storage_quota_gb * 1e9),
        sync=settings.journal.sync,
        stop_epochs=settings.stop.epochs,
        stop_steps=settings.stop.steps,
        stop_hours=settings.stop.hours,
        stop_tokens=settings.stop.tokens,
        patience=settings.stop.patience,
        metric=metric,
        better=better,
        keep_best=settings.keep_best is not None,
        max_order_factor=settings.learning_rate.max_order_factor,
        lr_failures=breaker.failures,
        lr_reset_s=breaker.reset_s,
        lr_probes=breaker.probes,
        skip_batches=settings.rollback.skip_batches,
        skip_batch_on_death=settings.on_death == "skip_batch",
        detect_rollback=settings.detect.act and settings.detect.rollback,
        detect_trial=settings.detect.trial,
        detect_halt=settings.detect.halt,
        accumulate=settings.accumulate,
        budgets_act=settings.budgets.act,
        budget_limits=st.limits_of(settings),
        breakers=st.breakers_of(settings),
        snapshot_slots=settings.rollback.checkpoint_cache_size if settings.rollback.fast_path_enabled else 0,
        snapshot_every=settings.snapshots.every.steps or 0,
        snapshot_every_s=settings.snapshots.every.seconds or 0.0,
        snapshot_share=SNAPSHOT_SHARE,
        snapshot_watch=settings.snapshots.watch_steps,
        snapshot_memory=None if settings.snapshots.memory_gb is None else int(settings.snapshots.memory_gb * 1e9),
        fast_budget_s=settings.rollback.fast_path_timeout_ms / 1e3,
        full_budget_s=settings.rollback.full_path_timeout_s,
        rate_factor=settings.rollback.rate_factor,
        chance=settings.detect.chance,
        strategy=strategies.who_decides(settings, 0) or (m.AUTO if strategies.who_decides(settings, 1) else m.NONE),
        morphogenesis=settings.enable_morphogenetic,
        blend_steps=settings.seeds.blend_steps,
        embargo_epochs=settings.seeds.embargo_epochs,
        max_regression=settings.seeds.gates.max_regression,
        seeds_evaluate=Learning(settings.seeds.evaluate),
        seeds_fossil=Learning(settings.seeds.fossil),
        seed_warmup_epochs=settings.seeds.warmup_epochs,
        prune=plan_of(settings) if settings.prune.enabled else None,
    )


def given_text(request: RunRequest) -> bytes | None:
    """Return the text for config.yaml: the given file, or the command line's options as YAML; None without either."""
    if request.config is not None:
        return request.config.read_bytes()
    if request.task is None:
        return None
    lines = ["tolaria:", f"  task: {config.anchored(request.task, Path())}"]
    if request.epochs is not None:
        lines.append(f"  epochs: {request.epochs}")
    return ("\n".join(lines) + "\n").encode()
