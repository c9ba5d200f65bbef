"""A small GPT-2 of transformers learns the texts of Python's help, byte by byte, with the collator of transformers."""

from __future__ import annotations

from pydoc_data.topics import topics

from torch.utils.data import DataLoader
from transformers import ByT5Tokenizer, DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel

TOKENIZER = ByT5Tokenizer()  # bytes: nothing is downloaded
COLLATOR = DataCollatorForLanguageModeling(TOKENIZER, mlm=False)
LINES = [line.strip() for text in topics.values() for line in text.splitlines() if len(line) > 40]


def loader(lines, cfg, *, shuffle):
    rows = [TOKENIZER(line, truncation=True, max_length=64) for line in lines]
    return DataLoader(rows, cfg.batch_size, shuffle=shuffle, collate_fn=COLLATOR)


class Bytes:
    def model(self, cfg):
        size = {"vocab_size": len(TOKENIZER), "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
        return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=TOKENIZER.pad_token_id, eos_token_id=1))

    def train_data(self, cfg):
        return loader(LINES[200:1000], cfg, shuffle=True)

    def val_data(self, cfg):
        return loader(LINES[:100], cfg, shuffle=False)

    def param_groups(self, model, cfg):
        matrices, others = ([p for p in model.parameters() if (p.dim() > 1) is wanted] for wanted in (True, False))
        return [{"params": matrices}, {"params": others, "weight_decay": 0.0}]

    def loss(self, model, batch):
        return model(**batch).loss

    def evaluate(self, model, batch):
        tokens = int((batch["labels"][:, 1:] != -100).sum())
        return {"loss": (model(**batch).loss * tokens, tokens)}
