"""What a model's generation_config.json says of sampling, and what of it is left out."""

import json
import shutil
from pathlib import Path

import pytest

from nbgen.errors import ModelError
from tests.engine.conftest import build


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_sampling_defaults_come_from_the_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_k": 0, "eos_token_id": [0, 7]}))
    assembly = build(folder)
    assert assembly.model.sampling_defaults == {"temperature": 0.3, "top_k": -1}
    assert build(folder, sampling_defaults="openai").model.sampling_defaults == {}
    assert assembly.engine._launcher._sampler.eos_ids == {0, 7}


def test_defaults_that_no_request_may_have_are_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = {"temperature": "hot", "top_p": 7, "top_k": 50.0, "min_p": 0.1, "repetition_penalty": -1}
    (folder / "generation_config.json").write_text(json.dumps(odd))
    assert build(folder).model.sampling_defaults == {"top_k": 50, "min_p": 0.1}
    left_out = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(left_out) == 3
    for words, name in zip(left_out, ("temperature", "top_p", "repetition_penalty"), strict=True):
        assert name in words


@pytest.mark.parametrize("odd", [[[1]], {"a": 1}, "2", True, [1.5, "x"], -1, [0, 260, 2**70]])
def test_ends_that_are_no_tokens_are_left_out(folder: Path, odd: object, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": odd}))
    assert build(folder).engine._launcher._sampler.eos_ids == {0}
    assert "eos_token_id holds" in caplog.text


def test_generation_settings_that_transformers_refuses_are_blamed_themselves(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"cache_implementation": "nosuch"}))
    with pytest.raises(ModelError, match=r"the generation_config\.json of .* cannot be read"):
        build(folder)
