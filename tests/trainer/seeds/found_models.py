"""Models of timm and transformers, small, without a network.

timm's package imports torchvision, which has no build for this torch; its models need two names of it. So these, and
empty packages `timm` and `timm.models`, stand in `sys.modules` while the modules of two models are imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn


def _package(name: str, folder: Path | None = None, **content: object) -> None:
    package = types.ModuleType(name)
    package.__path__ = [] if folder is None else [str(folder)]
    package.__dict__.update(content)
    sys.modules[name] = package


@functools.cache
def timm_models() -> dict[str, types.ModuleType]:
    """Return timm's modules `resnet` and `vision_transformer`, or skip the test with what is missing."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed; make test installs it with --no-deps")
    folder = Path(spec.origin).parent
    roots = {"timm", "torchvision"}
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in roots}
    features = dict.fromkeys(("create_feature_extractor", "get_graph_node_names"))
    for name in ("torchvision", "torchvision.ops", "torchvision.models"):
        _package(name)
    _package("torchvision.ops.misc", FrozenBatchNorm2d=type("FrozenBatchNorm2d", (nn.Module,), {}))
    _package("torchvision.models.feature_extraction", **features)
    _package("timm", folder, __version__="0")
    _package("timm.models", folder / "models")
    _package("timm.data", folder / "data")
    try:
        constants = importlib.import_module("timm.data.constants")
        sys.modules["timm.data"].__dict__.update({k: v for k, v in vars(constants).items() if k.isupper()})
        return {name: importlib.import_module(f"timm.models.{name}") for name in ("resnet", "vision_transformer")}
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update(before)


def resnet() -> tuple[nn.Module, torch.Tensor]:
    """Return timm's ResNet of four blocks, and images."""
    of = timm_models()["resnet"]
    return of.ResNet(of.BasicBlock, [1, 1, 1, 1], num_classes=5, channels=(8, 8, 16, 16), stem_width=8), torch.randn(
        2, 3, 32, 32
    )


def vision_transformer() -> tuple[nn.Module, torch.Tensor]:
    """Return timm's ViT of two blocks, and images."""
    of = timm_models()["vision_transformer"]
    model = of.VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)
    return model, torch.randn(2, 3, 16, 16)


def gpt2() -> tuple[nn.Module, torch.Tensor]:
    """Return GPT-2 of two layers, and tokens."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 64}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)
    return transformers.GPT2LMHeadModel(config), torch.randint(64, (2, 8))
