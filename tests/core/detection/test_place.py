"""The place of a fault: one that was passed in health is left behind, one that was not is the same place."""

from __future__ import annotations

from tolariad.core.calc.detection.place import RETURNS_MAX, WIDTHS, Place, found_again, is_passed, ranges, widened


def test_a_place_is_passed_after_its_step_and_only_in_health():
    """A high level after the step, or a usual one before it, is not enough."""
    place = Place((1, 1895), ceiling=1.0)

    assert not is_passed(place, (1, 1895), 0.5)
    assert not is_passed(place, (1, 1896), 1.2)
    assert is_passed(place, (1, 1896), 1.0)


def test_a_finding_before_the_place_was_passed_belongs_to_it():
    """Also if it comes a little later, as that of a fault from which eight batches were taken."""
    place = found_again(Place((1, 1895), 1.0, returns=1), (1, 1903), 7.0)

    assert place == Place((1, 1903), 1.0, returns=1)
    assert found_again(None, (1, 1903), 7.0) == Place((1, 1903), 7.0)


def test_quarantine_widens_with_each_return():
    """Eight, 64, 500; a rise of known length is covered as a whole."""
    assert [widened(returns, 0, 0) for returns in range(3)] == list(WIDTHS)
    assert widened(0, 150, 0) == 150
    assert widened(1, 150, 0) == 150
    assert widened(1, 20, 0) == 64
    assert widened(0, 900, 0) == 500


def test_quarantine_is_bounded_by_a_share_of_the_epoch():
    """A quarter of it, but at least the first width."""
    assert widened(1, 350, 800) == 200
    assert widened(1, 150, 8) == 8
    assert RETURNS_MAX == 2
    assert widened(0, 0, 40, step_batches=4) == 32
    assert widened(0, 0, 5) == 5


def test_a_quarantine_goes_on_in_the_next_epoch():
    """Each entry names batches of one epoch; of an epoch of unknown length all are its own."""
    assert ranges((3, 17), 3, 20) == ((3, 17, 19),)
    assert ranges((3, 17), 30, 20) == ((3, 17, 20), (4, 1, 20), (5, 1, 6))
    assert ranges((3, 17), 30, 0) == ((3, 17, 46),)
    assert ranges((3, 21), 2, 20) == ((3, 21, 21), (4, 1, 1))
