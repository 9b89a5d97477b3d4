"""How an embedding model is pooled where none of its files says it."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel

from nbgen.engine.embedding_model import EmbeddingModel
from nbgen.engine_config import EngineConfig
from tests.conftest import SIZES, save_tokenizer


def test_tokens_are_seen_to_look_ahead_beside_a_number_that_is_always_huge(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("roberta", **{**SIZES, "vocab_size": save_tokenizer(tmp_path)})
    model = AutoModel.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    norm = model.encoder.layer[-1].output.LayerNorm  # in RoBERTa's own such a number is a hundred times the others
    torch.nn.init.constant_(norm.weight, 0.1)
    torch.nn.init.constant_(norm.bias[3], 12.0)
    model.save_pretrained(tmp_path)
    read = EmbeddingModel(EngineConfig(model=str(tmp_path), dtype="float32"), lambda *_: None)
    assert read.pooling.mode == "mean"
