"""The networks that networks.py times: random weights, made from configurations.

Sizes are such that a step takes a tenth of a second on one core; what is in them is what matters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, Any, torch.Tensor]
WORDS, PLACES, CLASSES = 500, 32, 4


def pictures(model: nn.Module, size: int = 16, side: int = 32) -> Made:
    """Return a model with random pictures and classes."""
    return model, torch.randn(size, 3, side, side), torch.randint(0, CLASSES, (size,))


def texts(model: nn.Module, size: int = 16, **more: Any) -> Made:
    """Return a model with random texts, a third of them shorter, as a tokenizer gives them."""
    words = torch.randint(5, WORDS, (size, PLACES))
    seen = torch.ones_like(words)
    seen[::3, PLACES // 2 :] = 0
    given = {"input_ids": words * seen, "attention_mask": seen} | more
    return model, given, torch.randint(0, CLASSES, (size,))


@functools.cache
def torchvision() -> Any:
    """Return torchvision, with the operators named that its compiled part would register."""
    library = torch.library.Library("torchvision", "DEF")
    names = "roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool"
    names += " _roi_pool_backward ps_roi_pool _ps_roi_pool_backward nms qnms qroi_align"
    for name in [*names.split(), "deform_conv2d", "_deform_conv2d_backward"]:
        library.define(f"{name}(Tensor x) -> Tensor")
    import torchvision

    return torchvision, library  # which is undone when it is forgotten


def grouped(channels: int) -> nn.Module:
    """Return the usual replacement of a BatchNorm."""
    return nn.GroupNorm(min(8, channels), channels)


def resnet_groups() -> Made:
    models = torchvision()[0].models
    return pictures(models.resnet18(num_classes=CLASSES, norm_layer=grouped))


def frozen(model: nn.Module) -> nn.Module:
    """Return a model whose BatchNorm layers use running statistics, and train scale and shift."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def resnet_frozen() -> Made:
    return pictures(frozen(torchvision()[0].models.resnet18(num_classes=CLASSES)))


def convnext() -> Made:
    torchvision()
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(32, 64, 1), CNBlockConfig(64, 128, 1), CNBlockConfig(128, None, 2)]
    return pictures(ConvNeXt(blocks, num_classes=CLASSES), side=64)


def efficientnet() -> Made:
    return pictures(frozen(torchvision()[0].models.efficientnet_b0(num_classes=CLASSES)), 8, 64)


def swin() -> Made:
    torchvision()
    from torchvision.models.swin_transformer import SwinTransformer

    model = SwinTransformer(
        [4, 4], 48, [2, 2], [3, 6], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES
    )
    return pictures(model)


def vit_torchvision() -> Made:
    torchvision()
    from torchvision.models import VisionTransformer

    return pictures(VisionTransformer(32, 4, 3, 4, 64, 256, num_classes=CLASSES))


def vit_timm() -> Made:
    torchvision()
    from timm.models import VisionTransformer

    model = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=64, depth=3, num_heads=4, num_classes=CLASSES
    )
    return pictures(model)


def mixer() -> Made:
    torchvision()
    from timm.models import MlpMixer

    model = MlpMixer(img_size=32, patch_size=4, embed_dim=64, num_blocks=3, num_classes=CLASSES)
    return pictures(model)


def bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, max_position_embeddings=64, num_labels=CLASSES,
    )  # fmt: skip
    return texts(BertForSequenceClassification(config))


def roberta() -> Made:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, max_position_embeddings=64, num_labels=CLASSES,
    )  # fmt: skip
    return texts(RobertaForSequenceClassification(config))


def distilbert() -> Made:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=WORDS, dim=128, n_layers=2, n_heads=2, hidden_dim=512,
        max_position_embeddings=64, num_labels=CLASSES,
    )  # fmt: skip
    return texts(DistilBertForSequenceClassification(config))


def gpt2() -> Made:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=WORDS, n_embd=128, n_layer=2, n_head=2, n_positions=64, num_labels=CLASSES,
        pad_token_id=0,
    )  # fmt: skip
    return texts(GPT2ForSequenceClassification(config))


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=128, intermediate_size=344, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, num_labels=CLASSES, pad_token_id=0,
    )  # fmt: skip
    return texts(LlamaForSequenceClassification(config))


def t5() -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=64, d_kv=32, d_ff=256, num_layers=2, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    after = torch.randint(5, WORDS, (16, 8))
    model, given, _ = texts(T5ForConditionalGeneration(config), decoder_input_ids=after)
    return model, given, after


def adapted(make: Callable[[], Made], targets: list[str]) -> Made:
    from peft import LoraConfig, get_peft_model

    model, given, classes = make()
    kind = LoraConfig(task_type="SEQ_CLS", r=8, target_modules=targets)
    return get_peft_model(model, kind), given, classes


def bert_lora() -> Made:
    return adapted(bert, ["query", "value"])


def llama_lora() -> Made:
    return adapted(llama, ["q_proj", "v_proj"])


class TableTransformer(nn.Module):
    """A transformer over the columns of a table (Gorishniy et al. 2021): a token each, and one."""

    def __init__(self, columns: int, width: int = 64) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, columns, width) * 0.1)
        self.bias = nn.Parameter(torch.zeros(1, columns, width))
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.unsqueeze(2) * self.weight + self.bias
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1)
        return self.head(self.body(tokens)[:, 0])


def table() -> Made:
    return TableTransformer(20), torch.randn(64, 20), torch.randint(0, CLASSES, (64,))


def long_texts(model: nn.Module) -> Made:
    """Return a model with eight random texts of 128 words, of 30,000, a third of them shorter."""
    words = torch.randint(5, 30_000, (8, 128))
    seen = torch.ones_like(words)
    seen[::3, 64:] = 0
    return model, {"input_ids": words * seen, "attention_mask": seen}, torch.arange(8) % CLASSES


def wide_bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(num_hidden_layers=2, num_labels=CLASSES)
    return long_texts(BertForSequenceClassification(config))


def wide_gpt2() -> Made:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(n_layer=2, num_labels=CLASSES, pad_token_id=0)
    return long_texts(GPT2ForSequenceClassification(config))


def wide_llama() -> Made:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=30_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=2,
        num_attention_heads=12, num_labels=CLASSES, pad_token_id=0,
    )  # fmt: skip
    return long_texts(LlamaForSequenceClassification(config))


def wide_vit() -> Made:
    torchvision()
    from timm.models import VisionTransformer

    model = VisionTransformer(embed_dim=384, depth=2, num_heads=6, num_classes=CLASSES)
    return pictures(model, 8, 224)


def wide_resnet() -> Made:
    model, _, _ = resnet_groups()
    return pictures(model, 8, 128)


def full_texts(model: nn.Module, words: int, targets: torch.Tensor | None = None) -> Made:
    """Return a model with eight random texts of 64 words; to be continued, without classes."""
    ids = torch.randint(5, words, (8, 64))
    return model, {"input_ids": ids}, ids if targets is None else targets


def full_bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(num_labels=CLASSES)
    classes = torch.randint(0, CLASSES, (8,))
    return full_texts(BertForSequenceClassification(config), config.vocab_size, classes)


def smollm_lora() -> Made:
    """SmolLM2-135M as its configuration has it, with LoRA on queries and values."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
        tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    adapters = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"])
    return full_texts(get_peft_model(LlamaForCausalLM(config), adapters), config.vocab_size)


FULL: dict[str, Callable[[], Made]] = {  # with all their layers
    "BERT-base": full_bert,
    "SmolLM2-135M, LoRA": smollm_lora,
}
WIDE: dict[str, Callable[[], Made]] = {  # as wide as people train them, with two layers
    "BERT-base": wide_bert,
    "GPT-2 small": wide_gpt2,
    "LLaMA, 768": wide_llama,
    "ViT-S/16, 224 pixels": wide_vit,
    "ResNet-18, group norms, 128 pixels": wide_resnet,
    "BERT-base, LoRA": functools.partial(adapted, wide_bert, ["query", "value"]),
}
NETWORKS: dict[str, Callable[[], Made]] = {
    "ResNet-18, group norms": resnet_groups,
    "ResNet-18, frozen batch norms": resnet_frozen,
    "ConvNeXt": convnext,
    "EfficientNet-B0, frozen batch norms": efficientnet,
    "Swin": swin,
    "ViT (torchvision)": vit_torchvision,
    "ViT (timm)": vit_timm,
    "MLP-Mixer": mixer,
    "BERT": bert,
    "RoBERTa": roberta,
    "DistilBERT": distilbert,
    "GPT-2": gpt2,
    "LLaMA": llama,
    "T5": t5,
    "BERT, LoRA": bert_lora,
    "LLaMA, LoRA": llama_lora,
    "FT-Transformer": table,
}
