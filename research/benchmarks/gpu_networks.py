"""The networks that training_gpu.py times: random weights, made from configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, Any, torch.Tensor]
CLASSES = 10


class Block(nn.Module):
    """A wide residual block with group norms (Zagoruyko and Komodakis 2016; De et al. 2022)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(16, channels), nn.GroupNorm(16, width)
        self.one = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = stride == 1 and channels == width
        self.skip = nn.Identity() if same else nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.first(x))
        return self.skip(x) + self.two(functional.relu(self.second(self.one(h))))


def wide_resnet(tiny: bool) -> Made:
    """WRN-16-4 (tiny: WRN-10-1) and images of 32 by 32."""
    depth, factor, size = (10, 1, 4) if tiny else (16, 4, 256)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    channels = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for k in range((depth - 4) // 6):
            layers.append(Block(channels, width * factor, stride if k == 0 else 1))
            channels = width * factor
    layers += [nn.GroupNorm(16, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(channels, CLASSES))
    return model, torch.randn(size, 3, 32, 32), torch.randint(0, CLASSES, (size,))


def vit(tiny: bool) -> Made:
    """ViT-B/16 and images of 224 by 224."""
    from transformers import ViTConfig, ViTForImageClassification

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
    config = ViTConfig(num_labels=CLASSES, **(small if tiny else {}))
    size, side = (4, 32) if tiny else (64, 224)
    model = ViTForImageClassification(config)
    return model, torch.randn(size, 3, side, side), torch.randint(0, CLASSES, (size,))


def gpt2(tiny: bool) -> Made:
    """GPT-2 (124 million parameters) as a classifier of texts of 256 words."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 50}
    config = GPT2Config(num_labels=CLASSES, **(small if tiny else {}))
    config.pad_token_id = 0
    return texts(GPT2ForSequenceClassification(config), tiny)


def bert(tiny: bool) -> Made:
    """BERT (110 million parameters) as a classifier of texts of 256 words."""
    from transformers import BertConfig, BertForSequenceClassification

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 64, "vocab_size": 50, "max_position_embeddings": 16}
    config = BertConfig(num_labels=CLASSES, **(small if tiny else {}))
    return texts(BertForSequenceClassification(config), tiny)


def texts(model: nn.Module, tiny: bool) -> Made:
    """Return a model with random texts; places are said for each, as Opacus and fastDP need."""
    size, places, words = (4, 8, 50) if tiny else (16, 256, 30000)
    given = {
        "input_ids": torch.randint(1, words, (size, places)),
        "position_ids": torch.arange(places).repeat(size, 1),
    }
    return model, given, torch.randint(0, CLASSES, (size,))


def gpt2_lora(tiny: bool) -> Made:
    """GPT-2 with adapters of rank 8 in its attention (Hu et al. 2021)."""
    from peft import LoraConfig, get_peft_model

    model, given, classes = gpt2(tiny)
    kind = LoraConfig(task_type="SEQ_CLS", r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(model, kind), given, classes


NETWORKS: dict[str, Callable[[bool], Made]] = {
    "WRN-16-4": wide_resnet,
    "ViT-B": vit,
    "GPT-2": gpt2,
    "GPT-2, LoRA": gpt2_lora,
    "BERT": bert,
}
