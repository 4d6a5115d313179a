"""Models of transformers, made from configurations of two narrow layers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.steps import Data, Program

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import transformers as hf

LENGTH = 8
WORDS = 99

NARROW = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 32, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**NARROW, "num_key_value_heads": 1, "head_dim": 16}


def named(model: nn.Module, data: Data) -> torch.Tensor:
    """Return the loss that a model computes from what it is given by name."""
    found: Any = model(**data)
    return found.loss


def squared(model: nn.Module, data: Data) -> torch.Tensor:
    """Return a loss of the last hidden state of a model without a loss of its own."""
    found: Any = model(**data)
    return found.last_hidden_state.pow(2).mean()


def words(batch: int, labels: str = "words") -> Data:
    """Return sentences, and the words or the classes that they are trained on."""
    source = torch.Generator().manual_seed(batch)
    tokens = torch.randint(3, WORDS, (batch, LENGTH), generator=source)
    if labels == "classes":
        return {"input_ids": tokens, "labels": torch.arange(batch) % 2}
    return {"input_ids": tokens, "labels": tokens.clone()}


def sentences(batch: int) -> Data:
    """Return sentences of different lengths, with a mask, and their classes."""
    data = words(batch, "classes")
    mask = torch.ones(batch, LENGTH, dtype=torch.int64)
    mask[0, LENGTH // 2 :] = 0
    return {**data, "attention_mask": mask}


def pictures(batch: int) -> Data:
    source = torch.Generator().manual_seed(batch)
    pixels = torch.rand(batch, 3, 32, 32, generator=source)
    return {"pixel_values": pixels, "labels": torch.arange(batch) % 2}


def sounds(batch: int) -> Data:
    source = torch.Generator().manual_seed(batch)
    return {
        "input_values": torch.rand(batch, 640, generator=source),
        "labels": torch.arange(1, 3).repeat(batch, 1),
    }


def spectrograms(batch: int) -> Data:
    source = torch.Generator().manual_seed(batch)
    features = torch.rand(batch, 16, 16, generator=source)
    return {"input_features": features, "labels": words(batch)["labels"]}


def captions(batch: int) -> Data:
    return {
        "input_ids": words(batch)["input_ids"],
        "pixel_values": pictures(batch)["pixel_values"],
        "return_loss": torch.tensor(True),
    }


def built(kind: str, config: Any) -> nn.Module:
    model: nn.Module = getattr(hf, kind)(config)
    return model.train()


def trained(
    kind: str, config: str, data: Any = words, loss: Any = named, **options: Any
) -> Program:
    given = partial(getattr(hf, config), **options)
    return Program(lambda: built(kind, given()), data, loss)


def language(family: str, **options: Any) -> Program:
    return trained(f"{family}ForCausalLM", f"{family}Config", **options)


def classifier(family: str, **options: Any) -> Program:
    kind = f"{family}ForSequenceClassification"
    return trained(kind, f"{family}Config", sentences, **options)


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
SEQUENCES = {
    "vocab_size": WORDS, "d_model": 32, "pad_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
CODED = {
    **SEQUENCES, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "bos_token_id": 1,
}  # fmt: skip
PATCHES = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
           "num_attention_heads": 2, "intermediate_size": 64}  # fmt: skip
SPEECH = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "layerdrop": 0.0,
    "feat_proj_dropout": 0.1, "ctc_loss_reduction": "mean",
}  # fmt: skip

PROGRAMS: Mapping[str, Program] = {
    "hf/gpt2": trained("GPT2LMHeadModel", "GPT2Config", **NARROW),
    "hf/gpt_neox": language("GPTNeoX", **NARROW),
    "hf/gptj": language("GPTJ", **NARROW, rotary_dim=8),
    "hf/opt": language("OPT", **NARROW, ffn_dim=64, word_embed_proj_dim=32),
    "hf/bloom": language("Bloom", **NARROW),
    "hf/falcon": language("Falcon", **NARROW),
    "hf/llama": language("Llama", **GROUPED),
    "hf/mistral": language("Mistral", **GROUPED),
    "hf/qwen2": language("Qwen2", **NARROW, num_key_value_heads=1),
    "hf/qwen3_moe": language("Qwen3Moe", **GROUPED, **EXPERTS, num_experts=4),
    "hf/mixtral": language("Mixtral", **GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "hf/gemma2": language("Gemma2", **GROUPED),
    "hf/phi": language("Phi", **NARROW),
    "hf/mamba": language("Mamba", vocab_size=WORDS, hidden_size=32, num_hidden_layers=2),
    "hf/bert": classifier("Bert", **NARROW),
    "hf/roberta": classifier("Roberta", **NARROW),
    "hf/distilbert": classifier(
        "DistilBert", vocab_size=WORDS, dim=32, n_layers=2, n_heads=2, hidden_dim=64
    ),
    "hf/albert": classifier("Albert", **NARROW, embedding_size=16),
    "hf/electra": classifier("Electra", **NARROW, embedding_size=16),
    "hf/deberta_v2": classifier(
        "DebertaV2", **NARROW, relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "hf/t5": trained(
        "T5ForConditionalGeneration", "T5Config", **SEQUENCES, d_kv=16, d_ff=64, num_layers=2,
        num_heads=2,
    ),
    "hf/bart": trained("BartForConditionalGeneration", "BartConfig", **CODED),
    "hf/whisper": trained(
        "WhisperForConditionalGeneration", "WhisperConfig", spectrograms, **CODED,
        num_mel_bins=16, max_source_positions=8, max_target_positions=16,
    ),
    "hf/wav2vec2": trained("Wav2Vec2ForCTC", "Wav2Vec2Config", sounds, **SPEECH),
    "hf/vit": trained("ViTForImageClassification", "ViTConfig", pictures, **PATCHES),
    "hf/segformer": trained(
        "SegformerForImageClassification", "SegformerConfig", pictures, depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 32], num_attention_heads=[1, 2, 2, 2],
    ),
}  # fmt: skip
