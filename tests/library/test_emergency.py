"""Emergencies in a run that really trains."""

from __future__ import annotations

from tests.library.inside import ordered
from tests.library.small import CONFIG, EPOCHS, Hooks, bits, loaders, network
from tests.recorded import events_of, of
from tolariad import Tolaria
from tolariad.core import messages as m

LEFT = 13


def test_what_major_leaves_comes_out_the_same_from_where_it_goes_to(tmp_path):
    """Parameters, buffers and draws of every step are the same up to the abandoned one, so it need not be saved."""
    tolaria = Tolaria(CONFIG, run_dir=tmp_path / "run")
    seen: list[dict[int, object]] = [{}, {}]

    def hook(step):
        back = LEFT in seen[0]
        seen[back].setdefault(step, bits(model))
        if step == LEFT and not back:
            order = m.RaiseEmergency(level=m.Level.MAJOR, reason="it looks odd")
            assert ordered(tolaria, order)

    model = network()
    tolaria.train(model, *loaders(validated=False), EPOCHS, task=Hooks(hook))
    events = events_of(tmp_path / "run")
    (raised,), (done,) = of(events, m.EmergencyRaised), of(events, m.RolledBack)
    first, again = seen

    assert raised.follows is m.Follows.ROLLBACK
    assert 0 <= done.step < LEFT
    assert [again[step] == first[step] for step in range(done.step + 1, LEFT + 1)] == [True] * (LEFT - done.step)
