"""Requests and answers of pruning as bytes: StructuralPruningRequest, StructuralPruningResponse, and their frames.

Promises: what was written is read back without loss. Bytes that are no such message, too many bytes, and values that
have no meaning here are refused by a sentence (`MessageRefused`). Whether an answer may be used is decided by
`tolariad.core.calc.pruning.analysis.refusal_of`.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from tolariad.core.calc.pruning.analysis import AnalysedGroup, AnalysisAnswer, AnalysisRequest
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.core.calc.pruning.cost import Cut
from tolariad.core.calc.pruning.known import KnownImportance
from tolariad.core.calc.pruning.phase import PruningPhase
from tolariad.core.calc.pruning.units import Units
from tolariad.core.calc.pruning.verdict import MaskMeasure, PruningDecision
from tolariad.leyline.serializer import MessageRefused
from tolariad.leyline.v1 import enums_pb2 as enums
from tolariad.leyline.v1 import pruning_pb2 as pb

# Requests and answers name groups and units; a model of 36 000 channels needs some 100 kB.
MESSAGE_BYTES_MAX: Final = 1024 * 1024
SENDER: Final = "tolaria"
ANALYST: Final = "emrakul"
_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size
_KINDS: Final = {
    UnitKind.CHANNEL: enums.PRUNING_MASK_TYPE_CHANNEL,
    UnitKind.HEAD: enums.PRUNING_MASK_TYPE_ATTENTION_HEAD,
}
# Those that the contract has a name for.
_ESTIMATORS: Final[Mapping[str, pb.ImportanceEstimator]] = {
    "magnitude": pb.IMPORTANCE_ESTIMATOR_MAGNITUDE,
    "fisher": pb.IMPORTANCE_ESTIMATOR_FISHER_DIAG,
}
_KIND_OF: Final[Mapping[int, UnitKind]] = {number: kind for kind, number in _KINDS.items()}

M = TypeVar("M", pb.StructuralPruningRequest, pb.StructuralPruningResponse)
E = TypeVar("E", bound=IntEnum)


class AnalysisFailed(Exception):
    """The analysis gave no result. The text is a sentence that says why."""


def framed(body: bytes) -> bytes:
    """Return the message with its length before it. Raises MessageRefused if it is too long."""
    _check_size(len(body))
    return _LENGTH.pack(len(body)) + body


def length_of(head: bytes) -> int:
    """Return the length of the message that follows these LENGTH_BYTES. Raises MessageRefused if it is too long."""
    (size,) = _LENGTH.unpack(head)
    _check_size(size)
    return int(size)


def _check_size(size: int) -> None:
    if size > MESSAGE_BYTES_MAX:
        raise MessageRefused(f"A message about pruning has {size} bytes; at most {MESSAGE_BYTES_MAX} are allowed.")


def write_request(
    request: AnalysisRequest, request_id: str, timeout_s: float, known: KnownImportance | None = None
) -> bytes:
    """Return the bytes of a request. `request_id`: a UUID. Raises MessageRefused if they are too many.

    `known`: the importance of the analysis before, which is left out if it would take half of the message.
    """
    message = pb.StructuralPruningRequest(
        request_id=request_id,
        checkpoint_id=request.checkpoint,
        epoch=request.epoch,
        phase=f"PRUNING_PHASE_{request.phase.name}",
        config=pb.PruningConfiguration(
            budget_fraction=request.share,
            cumulative_cap=request.cap,
            mode=pb.PRUNING_MODE_LOGICAL,
            cycle=request.cycle,
            manifest_blake3=request.manifest,
            masked=[pb.UnitSet(group=name, indices=units) for name, units in request.masked.items()],
            removed_units=request.removed,
            pruned_channels=request.pruned_channels,
            pruned_parameters=request.pruned,
            removed_parameters=request.taken,
            avoid=[pb.UnitSet(group=name, indices=units) for name, units in request.avoid.items()],
            former_importance=request.former,
            importance_output=request.output,
        ),
        source_subsystem=SENDER,
        idempotency_key=f"{request.epoch}:{request.manifest}:{request_id}",
    )
    message.timeout.FromMilliseconds(round(1e3 * timeout_s))
    message.created_at.GetCurrentTime()
    if known is not None:
        statistics = _statistics(known)
        if statistics.ByteSize() <= MESSAGE_BYTES_MAX // 2:
            message.importance_stats.CopyFrom(statistics)
    return _written(message)


def _statistics(known: KnownImportance) -> pb.ImportanceStatistics:
    """Return what is known of the importance: the newest scores of each group, under the name of its module."""
    estimator, digest = _ESTIMATORS.get(known.estimator, pb.IMPORTANCE_ESTIMATOR_UNSPECIFIED), hashlib.sha256()
    message = pb.ImportanceStatistics(version=1, epoch=known.epoch)
    for path, scores in sorted(known.scores.items()):
        one = message.parameters.add(
            uuid=str(uuid.uuid5(uuid.NAMESPACE_OID, path)),
            path=path,
            granularity=enums.PRUNING_MASK_TYPE_CHANNEL,
            count=known.samples,
            last=scores,
            estimator=estimator,
        )
        digest.update(one.SerializeToString(deterministic=True))
    message.content_sha256 = digest.hexdigest()
    return message


def read_request(data: bytes) -> tuple[AnalysisRequest, str]:
    """Return the request and its id. Raises MessageRefused."""
    message = _parsed(pb.StructuralPruningRequest, data)
    config = message.config
    request = AnalysisRequest(
        cycle=config.cycle,
        checkpoint=message.checkpoint_id,
        manifest=config.manifest_blake3,
        epoch=message.epoch,
        phase=_known(message.phase, PruningPhase),
        share=_decimal(config.budget_fraction),
        cap=_decimal(config.cumulative_cap),
        pruned=config.pruned_parameters,
        taken=config.removed_parameters,
        pruned_channels=config.pruned_channels,
        masked=_units(config.masked),
        removed=dict(config.removed_units),
        avoid=_units(config.avoid),
        former=config.former_importance,
        output=config.importance_output,
    )
    return request, message.request_id


def write_answer(request: AnalysisRequest, answer: AnalysisAnswer, request_id: str, response_id: str) -> bytes:
    """Return the bytes of an answer. Raises MessageRefused if they are too many."""
    measured, total = answer.measured, max(1, answer.parameters + request.taken)
    passed = answer.decision is not PruningDecision.NO_GO
    result = pb.StructuralAnalysisResult(
        checkpoint_id=answer.checkpoint,
        pruning_strategy=answer.estimator,
        analysis_time_seconds=answer.seconds,
        parameters_analyzed=answer.parameters,
        parameters_marked_for_pruning=answer.parameters_masked,
        cycle=answer.cycle,
        groups=[
            pb.AnalysedGroup(
                name=one.name,
                kind=_KINDS[one.kind],
                width=one.width,
                channels=one.channels,
                cuts=[pb.ParameterCut(parameter=c.parameter, dimension=c.dim, indices=c.indices) for c in one.cuts],
            )
            for one in answer.groups
        ],
        units=[
            pb.UnitSet(group=name, indices=units, scores=answer.scores.get(name, ()))
            for name, units in answer.units.items()
        ],
        refused_modules=answer.refused,
        rank_correlation=answer.correlation,
        sampled_units=answer.sampled,
        stability=answer.stability,
        samples=answer.samples,
        importance_bytes=answer.file_bytes,
        cpu_seconds=answer.cpu_seconds,
        plan=answer.plan,
        parameter_shapes=[pb.ParameterShape(sizes=shape) for shape in answer.shapes],
        channels_marked_for_pruning=sum(one.channels * len(answer.units.get(one.name, ())) for one in answer.groups),
    )
    message = pb.StructuralPruningResponse(
        request_id=request_id,
        response_id=response_id,
        validation_passed=passed,
        analysis_result=result,
        decision_report=pb.PruningDecisionReport(
            decision=f"PRUNING_DECISION_{answer.decision.name}",
            reasons=answer.reasons,
            requested_fraction=request.share,
            granted_fraction=answer.parameters_masked / total if passed else 0.0,
            decided_by=ANALYST,
        ),
        safety_report=pb.StructuralSafetyReport(
            safety_validation_passed=passed,
            measured=pb.MaskMeasurement(**{name: getattr(measured, name) for name in MaskMeasure.__struct_fields__}),
        ),
        source_subsystem=ANALYST,
        processing_time_ms=min(round(1e3 * answer.seconds), 2**32 - 1),
        pruning_metadata=pb.PruningMetadata(
            request_id=request_id,
            cumulative_pruned_fraction=(request.pruned + answer.parameters_masked) / total,
            parameters_analyzed=answer.parameters,
            parameters_marked_for_pruning=answer.parameters_masked,
            mask_set_sha256=answer.masks_sha256,
        ),
    )
    message.completed_at.GetCurrentTime()
    return _written(message)


def write_failure(why: str, request_id: str, response_id: str) -> bytes:
    """Return the bytes of an answer without a result. Its decision is UNKNOWN, its only reason is `why`."""
    report = pb.PruningDecisionReport(decision=enums.PRUNING_DECISION_UNKNOWN, reasons=[why], decided_by=ANALYST)
    message = pb.StructuralPruningResponse(
        request_id=request_id, response_id=response_id, decision_report=report, source_subsystem=ANALYST
    )
    message.completed_at.GetCurrentTime()
    return _written(message)


def read_answer(data: bytes, request_id: str) -> AnalysisAnswer:
    """Return the answer to this request. Raises MessageRefused, and AnalysisFailed if it has no result."""
    message = _parsed(pb.StructuralPruningResponse, data)
    if message.request_id != request_id:
        raise MessageRefused(f"The answer is to request {message.request_id or '(none)'}, but {request_id} was asked.")
    report, result = message.decision_report, message.analysis_result
    if report.decision == enums.PRUNING_DECISION_UNKNOWN:
        raise AnalysisFailed(report.reasons[0] if report.reasons else "The analysis failed without a reason.")
    return AnalysisAnswer(
        cycle=result.cycle,
        checkpoint=result.checkpoint_id,
        decision=_known(report.decision, PruningDecision),
        measured=_measured(message.safety_report.measured),
        groups=tuple(
            AnalysedGroup(
                name=one.name,
                kind=_kind(one),
                width=one.width,
                channels=one.channels,
                cuts=tuple(Cut(each.parameter, each.dimension, tuple(each.indices)) for each in one.cuts),
            )
            for one in result.groups
        ),
        reasons=tuple(report.reasons),
        units=_units(result.units),
        scores={one.group: tuple(one.scores) for one in result.units},
        masks_sha256=message.pruning_metadata.mask_set_sha256,
        plan=result.plan,
        estimator=result.pruning_strategy,
        correlation=result.rank_correlation if result.HasField("rank_correlation") else None,
        sampled=result.sampled_units,
        stability=result.stability if result.HasField("stability") else None,
        samples=result.samples,
        parameters=result.parameters_analyzed,
        parameters_masked=result.parameters_marked_for_pruning,
        shapes=tuple(tuple(shape.sizes) for shape in result.parameter_shapes),
        refused=tuple(result.refused_modules),
        file_bytes=result.importance_bytes,
        seconds=result.analysis_time_seconds,
        cpu_seconds=result.cpu_seconds,
    )


def _measured(message: pb.MaskMeasurement) -> MaskMeasure:
    return MaskMeasure(
        accuracy_before=message.accuracy_before,
        accuracy=message.accuracy,
        gradient_norm_before=message.gradient_norm_before,
        gradient_norm=message.gradient_norm,
        layer_share=message.layer_share,
        spread=message.spread,
        samples=message.samples,
        structure=message.structure,
        without_gradient=tuple(message.without_gradient),
        memory=message.memory if message.HasField("memory") else None,
        loss_before=message.loss_before if message.HasField("loss_before") else None,
    )


def _written(message: Message) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    _check_size(len(data))
    return data


def _parsed(kind: type[M], data: bytes) -> M:
    _check_size(len(data))
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise MessageRefused(f"These {len(data)} bytes are no {kind.__name__} ({error}).") from error


def _units(sets: Iterable[pb.UnitSet]) -> Units:
    found: Units = {}
    for one in sets:
        if one.group in found:
            raise MessageRefused(f"The group {one.group!r} has two sets of units.")
        found[one.group] = tuple(one.indices)
    return found


def _kind(group: pb.AnalysedGroup) -> UnitKind:
    if group.kind not in _KIND_OF:
        raise MessageRefused(f"The group {group.name!r} has units of the unknown kind {group.kind}.")
    return _KIND_OF[group.kind]


def _known(number: int, kind: type[E]) -> E:
    try:
        return kind(number)
    except ValueError:
        raise MessageRefused(f"There is no {kind.__name__} {number}.") from None


def _decimal(share: float) -> float:
    """Return the decimal number that a float of 32 bits stands for: 0.01, and not a little less."""
    return float(f"{share:.7g}")
