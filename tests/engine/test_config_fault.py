"""What is wrong in a configuration is said by its entry, and is not put down to the weights."""

import shutil
from pathlib import Path

import pytest

from nbgen.engine.config_fault import told
from nbgen.errors import ModelError
from tests.conftest import at_least, edit
from tests.engine.conftest import build


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_position_embeddings": 512.0}, "max_position_embeddings is 512.0, and must be a whole number"),
        ({"rms_norm_eps": "1e-6"}, 'rms_norm_eps is "1e-6", and must be a number'),
        ({"num_attention_heads": "4"}, 'num_attention_heads is "4", and must be a whole number'),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"hidden_size": 63}, "hidden_size is 63 and num_attention_heads is 4"),
        ({"layer_types": ["full_attention", "odd"]}, 'layer_types is ["full_attention", "odd"]'),
        ({"rope_parameters": {"rope_type": "odd", "factor": 2.0}}, 'rope_parameters.rope_type is "odd"'),
        ({"hidden_act": "odd"}, 'hidden_act is "odd"'),
    ],
)
def test_the_entry_that_is_wrong_is_named(
    changes: dict[str, object], words: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError) as refused:
        build(folder)
    assert f"the configuration of {folder} cannot be read" in refused.value.message
    if at_least("transformers", "5.23"):  # older ones say less
        assert refused.value.message.endswith(f": in config.json {words}")


def test_what_no_entry_is_known_of_is_not_guessed() -> None:
    config = {"model_type": "odd", "text_config": {"num_layers": 2, "eos_token_id": 0}, "name": "x"}
    assert told(RuntimeError("odd"), config) == told(KeyError("odd"), config) == ""
    config["text_config"]["num_layers"] = 0
    assert told(ZeroDivisionError("by zero"), config) == "text_config.num_layers is 0"
