"""What differs by rank is in the checkpoint and comes back; W ranks make the step of one process that accumulates W."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.library.inside import written_at_once
from tests.library.ranks.groups import BATCH, EPOCHS, Kills, Program, start, until_done
from tests.library.small import CONFIG, data
from tests.recorded import of, sound
from tolariad import Tolaria
from tolariad.core import messages as m
from tolariad.storage import read_manifest


class Keeping(Program):
    """Keeps a count and a generator of its own in each rank, and loads data by a worker process."""

    def loader(self):
        """Return a loader with a worker."""
        sampler = DistributedSampler(data(self.samples), seed=2)
        whole = {"sampler": sampler, "num_workers": 1, "multiprocessing_context": "fork"}
        return DataLoader(data(self.samples), BATCH, **whole), sampler

    def train(self, run, rank, model, sampler):
        """Be the loop."""
        self.kept = {"count": 0, "drawn": torch.Generator().manual_seed(rank), "sum": 0.0}
        run.keep("own", self.kept)
        super().train(run, rank, model, sampler)

    def step_of(self, run, batch, epoch, rank, model, *more):
        """Make a step, and draw."""
        super().step_of(run, batch, epoch, rank, model, *more)
        self.kept["count"] += 1 + rank
        self.kept["sum"] += (
            float(torch.rand(1, generator=self.kept["drawn"])) + float(batch[0].sum()) + torch.rand(1).item()
        )

    def __call__(self, rank):
        """Train, and return what was kept too."""
        return {**super().__call__(rank), "kept": (self.kept["count"], self.kept["sum"])}


def test_what_a_rank_keeps_draws_and_reads_comes_back(tmp_path):
    """Kept objects, generators of a rank's own and process-wide ones, and the place in its data with a worker."""
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    calm = start(2, Keeping(tmp_path / "calm" / "run"), tmp_path / "calm")
    program = Kills(tmp_path / "killed", "1 before 7", "0 after 11").into(Keeping(tmp_path / "killed" / "run"))
    found, starts = until_done(2, program, tmp_path / "killed")

    assert starts == 3
    assert calm[0]["kept"] != calm[1]["kept"]
    assert found == calm


def test_a_checkpoint_has_the_pieces_of_all_ranks_in_one_manifest(tmp_path):
    """Model and optimizer once, the state of each rank; each piece has its hash there."""
    start(2, Program(tmp_path / "run", epochs=1), tmp_path)
    newest = of(sound(tmp_path / "run"), m.CheckpointCommitted)[-1]
    manifest = read_manifest(tmp_path / "run" / "checkpoints" / newest.id, newest.manifest)

    assert manifest.ranks == 2
    assert sorted(piece.name for piece in manifest.pieces) == [
        *("model-00000.safetensors", "optimizer-00000.safetensors"),
        *("state-00000.msgpack", "state-00000.safetensors", "state-00001.msgpack", "state-00001.safetensors"),
    ]


def test_a_damaged_piece_of_one_rank_sends_all_to_the_checkpoint_before(tmp_path):
    """No rank copies a byte of it."""
    for name in ("calm", "damaged"):
        (tmp_path / name).mkdir()
    calm = start(2, Program(tmp_path / "calm" / "run"), tmp_path / "calm")
    program = Program(tmp_path / "damaged" / "run")
    program.after = lambda one, _, step: one.run.stop() if step == 12 else None
    start(2, program, tmp_path / "damaged")
    newest = max((tmp_path / "damaged" / "run" / "checkpoints").glob("c*"))
    piece = newest / "state-00001.msgpack"
    piece.write_bytes(piece.read_bytes()[:-1] + b"\x00")

    program.after = lambda *_: None
    assert start(2, program, tmp_path / "damaged") == calm


class Plain(Program):
    """Without dropout and statistics of batches, in float64."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.model = network64

    def step_of(self, run, batch, epoch, rank, model, *more):
        """Make a step in float64."""
        run.step(nn.functional.cross_entropy(model(batch[0].double()), batch[1]))


def network64():
    """Return a network in float64."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)).double()


def test_three_ranks_make_the_steps_of_one_process_that_accumulates_three(tmp_path):
    """Up to the order of a sum in float64. Its loader gives the batches of the ranks in turn."""
    found = start(3, Plain(tmp_path / "run"), tmp_path)
    parts = [DistributedSampler(data(72), 3, rank, seed=2) for rank in range(3)]

    class InTurn(torch.utils.data.Sampler):
        epoch = 1

        def __len__(self):
            return 9

        def __iter__(self):
            for part in parts:
                part.set_epoch(self.epoch)
            of_ranks = [list(part) for part in parts]
            for first in range(0, 24, BATCH):
                for one in of_ranks:
                    yield one[first : first + BATCH]

    sampler, model = InTurn(), network64()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = {"tolaria": {**CONFIG["tolaria"], "accumulate": 3}}
    run = Tolaria(config, run_dir=tmp_path / "one").run(model, optimizer, DataLoader(data(72), batch_sampler=sampler))
    for epoch in run.epochs(EPOCHS):
        sampler.epoch = epoch
        for inputs, targets in run.batches():
            run.step(nn.functional.cross_entropy(model(inputs.double()), targets))

    for name, parameter in model.named_parameters():
        other = torch.frombuffer(bytearray.fromhex(found[0]["bits"][name]), dtype=torch.float64).view_as(parameter)
        torch.testing.assert_close(parameter.detach(), other, rtol=0, atol=1e-12)


def test_one_rank_of_torchrun_is_a_run_of_one_process(tmp_path):
    """The same program with one process: the model in the wrapper is trained as it is."""
    (found,) = start(1, Program(tmp_path / "run"), tmp_path)

    assert found["phase"] == "completed"


class Printing(Program):
    """The code after the batches of an epoch uses a name that the batches set."""

    def train(self, run, rank, model, sampler):
        """Be the loop."""
        for epoch in run.epochs(self.epochs):
            sampler.set_epoch(epoch)
            for batch in run.batches():
                self.step_of(run, batch, epoch, rank, model)
                newest = batch
            run.validated(loss=float(newest[0].sum()))


def test_a_checkpoint_comes_after_the_code_that_ends_an_epoch(tmp_path, monkeypatch):
    """One of the epoch's last batch would let the next start begin without a batch: each would fail in that code."""
    written_at_once(monkeypatch.setattr)
    often = {"checkpoint": {"interval_steps": 10, "min_gap_s": 0}, "checkpoint_interval_epochs": 100}
    program = Kills(tmp_path, "1 before 13").into(Printing(tmp_path / "run", **often))
    found, starts = until_done(2, program, tmp_path)
    (_, again) = of(sound(tmp_path / "run"), m.TrainingStarted)

    assert (starts, again.step) == (2, 10)
    assert [one["phase"] for one in found] == ["completed"] * 2
