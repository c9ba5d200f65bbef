"""Small models of transformers that learn to repeat, and whose attention heads are pruned while processes die."""

from __future__ import annotations

import os
import time

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

# Seconds that a step sleeps. Only killed runs: so there are not thousands of steps to repeat undisturbed.
PAUSE_S = float(os.environ.get("HEADED_PAUSE_S", "0"))
LENGTH, WORDS, PERIOD = 8, 11, 4
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24, "n_positions": LENGTH}
KINDS = {
    # Conv1D layers, and one for queries, keys and values together.
    "gpt2": ("GPT2", "LMHeadModel", {**GPT2, **ENDS}),
    # The layer that reads the heads is in a module beside the attention.
    "bert": ("Bert", "ForMaskedLM", {**SIZES, "max_position_embeddings": LENGTH, "pad_token_id": 0}),
    # Two heads of queries share one of keys and values.
    "llama": ("Llama", "ForCausalLM", {**SIZES, **ENDS, "num_attention_heads": 8, "num_key_value_heads": 4}),
}


def rows(count, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(3, WORDS, (count, PERIOD), generator=draw).repeat(1, LENGTH // PERIOD)


class Repeats:
    """`task_options.model` names the kind."""

    def model(self, cfg):
        # Imported here: tests import this file, and are skipped without it.
        import transformers

        name, head, sizes = KINDS[cfg.task_options["model"]]
        config = getattr(transformers, f"{name}Config")(vocab_size=WORDS, **sizes)
        return getattr(transformers, f"{name}{head}")(config)

    def train_data(self, cfg):
        return DataLoader(TensorDataset(rows(96, 1)), cfg.batch_size, shuffle=True)

    def val_data(self, cfg):
        return DataLoader(TensorDataset(rows(48, 2)), cfg.batch_size)

    def loss(self, model, batch):
        scores, wanted = self._scored(model, batch)
        return functional.cross_entropy(scores, wanted)

    def evaluate(self, model, batch):
        scores, wanted = self._scored(model, batch)
        return {"accuracy": (float((scores.argmax(1) == wanted).sum()), len(wanted))}

    def _scored(self, model, batch):
        """The second half is what the first one was."""
        (words,) = batch
        half = model(words[:, :-1]).logits[:, PERIOD - 1 :]
        return half.flatten(0, 1), words[:, PERIOD:].flatten()

    def on_step_end(self, model, step):
        time.sleep(PAUSE_S)
