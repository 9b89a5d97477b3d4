"""Tests that need an NVIDIA GPU: `pytest -m gpu`. Elsewhere they are skipped."""

from pathlib import Path

import pytest
import torch

from tests.conftest import save_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="torch finds no NVIDIA GPU"))


@pytest.fixture(scope="session")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a gigabyte of weights in float32, so that their coming and going shows."""
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2, "head_dim": 64}
    sizes |= {"num_attention_heads": 32, "max_position_embeddings": 16_384}
    return save_model(tmp_path_factory.mktemp("models") / "large", **sizes)
