"""What comes at the last batch of an epoch waits for the code of the loop that follows the batches."""

from __future__ import annotations

from torch.nn.functional import cross_entropy

from tests.library.loops.programs import Loop
from tests.library.small import EPOCHS, STEPS_PER_EPOCH


class Printing(Loop):
    """A loop whose code after the batches needs the loss of the last one."""

    def go(self):
        """Train, and note the last loss of each epoch."""
        self.last = []
        for _ in self.run.epochs(EPOCHS):
            for inputs, targets in self.run.batches():
                loss = cross_entropy(self.model(inputs), targets)
                self.run.step(loss)
                self.counter.look(self.model)
                self.step += 1
                self.after(self)
            self.last.append(loss.item())
            self.counter.count += 1
        return self


def test_a_stop_at_the_last_batch_of_an_epoch_comes_after_its_code(tmp_path):
    """The next start begins with the next epoch. The code of each epoch was done once, with the bits of a calm run."""
    calm = Printing(tmp_path / "calm").go()

    def stop(loop):
        if loop.step == STEPS_PER_EPOCH:
            assert loop.run.stop()

    first = Printing(tmp_path / "run", stop).go()
    second = Printing(tmp_path / "run").go()

    assert (first.step, first.step + second.step) == (STEPS_PER_EPOCH, EPOCHS * STEPS_PER_EPOCH)
    assert (len(first.last), first.last + second.last) == (1, calm.last)
    assert second.bits == calm.bits
