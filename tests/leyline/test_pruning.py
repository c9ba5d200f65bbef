"""Requests and answers of pruning as bytes: nothing is lost, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.pruning.test_analysis import REQUEST, asked
from tests.supervisor.analysts import honest
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.core.calc.pruning.cost import Cut
from tolariad.core.calc.pruning.known import KnownImportance
from tolariad.core.calc.pruning.verdict import PruningDecision
from tolariad.leyline import (
    ImportanceEstimator,
    MessageRefused,
    StructuralPruningRequest,
    StructuralPruningResponse,
)
from tolariad.leyline.pruning import (
    LENGTH_BYTES,
    MESSAGE_BYTES_MAX,
    AnalysisFailed,
    framed,
    length_of,
    read_answer,
    read_request,
    write_answer,
    write_failure,
    write_request,
)

CUTS = (Cut(0, 0, (1,)), Cut(3, 1, (2, 0, 7)))


@given(asked(), st.integers(0, 1_000_000))
def test_a_request_is_read_as_it_was_written(given, millionths):
    """A share with up to seven digits is the same number, although the message holds 32 bits of it."""
    request = replace(given[0], share=millionths / 1e6, cap=millionths / 1e6, former="importance/a", output="b")

    assert read_request(write_request(request, "id", 300.0)) == (request, "id")


def test_a_share_of_a_percent_stays_a_percent():
    """As a float of 32 bits it would be 0.00999999977: of 10 000 channels one too few."""
    request, _ = read_request(write_request(replace(REQUEST, share=0.01), "id", 1.0))

    assert request.share == 0.01


KNOWN = KnownImportance(epoch=35, estimator="fisher", samples=1000, scores={"b": (2.0, 0.5), "a": (1e-300,)})


def test_a_request_holds_the_importance_that_is_known():
    """The scores of the analysis before, by group, with estimator and samples. The request is read as without them."""
    data = write_request(REQUEST, "id", 1.0, KNOWN)
    found = StructuralPruningRequest.FromString(data).importance_stats
    again = StructuralPruningRequest.FromString(write_request(REQUEST, "id", 1.0, KNOWN)).importance_stats

    assert (found.version, found.epoch) == (1, 35)
    assert [(one.path, tuple(one.last), one.count) for one in found.parameters] == [
        ("a", (1e-300,), 1000),
        ("b", (2.0, 0.5), 1000),
    ]
    assert {one.estimator for one in found.parameters} == {ImportanceEstimator.IMPORTANCE_ESTIMATOR_FISHER_DIAG}
    assert found.content_sha256 == again.content_sha256 != ""
    assert read_request(data) == (REQUEST, "id")
    assert not StructuralPruningRequest.FromString(write_request(REQUEST, "id", 1.0)).HasField("importance_stats")


def test_an_importance_that_would_fill_the_message_is_left_out():
    """The analysis reads it from its file; a request must be sent whatever the size of the model."""
    large = replace(KNOWN, scores={"a": (0.5,) * (MESSAGE_BYTES_MAX // 8)})

    assert read_request(write_request(REQUEST, "id", 1.0, large)) == (REQUEST, "id")


@pytest.mark.parametrize("decision", PruningDecision)
@pytest.mark.parametrize("missing", [None, 0.0])
def test_an_answer_is_read_as_it_was_written(decision, missing):
    """Also what was not measured, which is not the same as 0."""
    given = replace(
        honest(REQUEST),
        decision=decision,
        reasons=("One.", "Another."),
        correlation=missing,
        stability=missing,
        measured=replace(honest(REQUEST).measured, memory=missing, without_gradient=("a", "b"), structure="no"),
        groups=(replace(honest(REQUEST).groups[0], kind=UnitKind.HEAD, channels=16, cuts=CUTS),),
    )

    assert read_answer(write_answer(REQUEST, given, "id", "answer"), "id") == given


def test_an_answer_says_channels_and_parameters():
    """Of the cycle, of all cycles together, and as the source's share of the parameters."""
    request = replace(REQUEST, taken=800, pruned=820)
    message = StructuralPruningResponse.FromString(write_answer(request, honest(request), "id", "answer"))
    result, report, metadata = message.analysis_result, message.decision_report, message.pruning_metadata

    assert (result.channels_marked_for_pruning, result.parameters_marked_for_pruning) == (2, 20)
    assert (report.requested_fraction, report.granted_fraction) == pytest.approx((0.05, 20 / 3_000))
    assert metadata.cumulative_pruned_fraction == pytest.approx(840 / 3_000)
    assert (metadata.parameters_analyzed, metadata.parameters_marked_for_pruning) == (2_200, 20)


def test_a_failure_is_its_reason():
    """It has no result, and a decision that is none."""
    with pytest.raises(AnalysisFailed, match=r"^No torch-pruning\.$"):
        read_answer(write_failure("No torch-pruning.", "id", "answer"), "id")


def test_a_frame_has_the_length_before_it():
    """Too many bytes are refused by both sides, before they are read."""
    data = framed(b"abc")

    assert (length_of(data[:LENGTH_BYTES]), data[LENGTH_BYTES:]) == (3, b"abc")
    with pytest.raises(MessageRefused, match="1048577 bytes"):
        framed(bytes(MESSAGE_BYTES_MAX + 1))
    with pytest.raises(MessageRefused, match="4294967295 bytes"):
        length_of(b"\xff" * 4)


def test_other_messages_are_refused():
    """Bytes of no message, an unknown phase, kind or decision, another request."""
    with pytest.raises(MessageRefused, match="no StructuralPruningRequest"):
        read_request(b"\xff\xff")
    with pytest.raises(MessageRefused, match="There is no PruningPhase 0"):
        read_request(StructuralPruningRequest().SerializeToString())
    message = StructuralPruningResponse.FromString(write_answer(REQUEST, honest(REQUEST), "id", "answer"))
    with pytest.raises(MessageRefused, match="is to request id, but other was asked"):
        read_answer(message.SerializeToString(), "other")
    message.analysis_result.groups[0].kind = 3
    with pytest.raises(MessageRefused, match="'conv' has units of the unknown kind 3"):
        read_answer(message.SerializeToString(), "id")
    message.decision_report.decision = 9
    with pytest.raises(MessageRefused, match="There is no PruningDecision 9"):
        read_answer(message.SerializeToString(), "id")
