"""Attention heads of transformers' models, which write their layers in several ways; and their Conv1D."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from tests.trainer.pruning.without import same_without
from tolariad.core.calc.pruning.budget import UnitKind
from tolariad.trainer.pruning.verify import find_groups

pytest.importorskip("torch_pruning", reason="torch-pruning (extra `pruning`) is not installed")
# It takes long to import: only who runs these tests does so.
pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")

WORDS = {"vocab_size": 11, "max_position_embeddings": 8}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24, "n_positions": 8, "vocab_size": 11}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
# For each model its class, its sizes, and of its first layer: heads (name, units, channels in each), channels (name).
CASES = {
    "Bert": (
        "ForSequenceClassification",
        {**SIZES, **WORDS},
        ("bert.encoder.layer.0.attention.self.query", 4, 4),
        "bert.encoder.layer.0.intermediate.dense",
    ),
    "DistilBert": (
        "ForSequenceClassification",
        {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, **WORDS},
        ("distilbert.transformer.layer.0.attention.q_lin", 4, 4),
        "distilbert.transformer.layer.0.ffn.lin1",
    ),
    "ViT": (
        "ForImageClassification",
        {**SIZES, "image_size": 8, "patch_size": 4},
        ("vit.layers.0.attention.q_proj", 4, 4),
        "vit.layers.0.mlp.fc1",
    ),
    # Its Conv1D layers have transposed weights.
    "GPT2": ("LMHeadModel", {**GPT2, **ENDS}, ("transformer.h.0.attn.c_attn", 4, 4), "transformer.h.0.mlp.c_fc"),
    # Two heads of queries share one of keys and values: they are one unit.
    "Llama": (
        "ForCausalLM",
        {**SIZES, **WORDS, **ENDS, "num_key_value_heads": 2},
        ("model.layers.0.self_attn.q_proj", 2, 8),
        "model.layers.0.mlp.gate_proj",
    ),
}


class Logits(nn.Module):
    """A model's first output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        return self.model(inputs).logits


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_heads_and_feed_forward_channels_can_go(name, seed):
    """As in the model as it is called: masked and removed they give the same outputs and gradients."""
    kind, sizes, heads, channels = CASES[name]
    torch.manual_seed(seed)
    import transformers

    model = getattr(transformers, f"{name}{kind}")(getattr(transformers, f"{name}Config")(**sizes))
    inputs = torch.randn(2, 3, 8, 8) if name == "ViT" else torch.randint(3, 11, (2, 6))
    found = find_groups(model, (inputs,))

    of_heads = [one for one in found.groups if one.kind is UnitKind.HEAD]
    assert (of_heads[0].name, of_heads[0].width, of_heads[0].channels) == heads
    assert len(of_heads) == 2
    assert not any(one.fixed for one in found.groups)
    assert channels in [one.name for one in found.groups]
    # Everything else with a weight is one of these, and the residual stream's first layer stands for all of it.
    assert any("normalises over its channels" in one.why or "different outputs" in one.why for one in found.refused)

    renamed = find_groups(Logits(model), (inputs,)).groups
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    small = same_without(Logits(model).double().eval(), inputs, renamed, seed)
    again = find_groups(small, (inputs,)).groups
    assert [one.name for one in again if one.kind is UnitKind.HEAD or one.width > 1]
