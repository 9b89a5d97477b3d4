"""Of each widely used model it is known what becomes of it: its family is tested, or loading says why it is refused."""

import json
from pathlib import Path

import pytest

from nbgen.engine import checkpoint
from nbgen.errors import ModelError
from tests.conftest import edit, save_model
from tests.engine.architectures import FAMILIES, HERE
from tests.engine.conftest import build
from tests.engine.test_architectures import README
from tests.engine.widely_used import MODELS, TYPES, WITH_CODE, summary


def test_they_are_a_hundred_and_the_readme_says_what_becomes_of_them() -> None:
    assert len(TYPES) == 100
    assert summary() in README.read_text(), summary()


@pytest.mark.parametrize("model_type", sorted(set(MODELS) - set(HERE)))
def test_a_type_that_exists_in_a_folder_alone_is_refused_with_its_code_and_without(
    model_type: str, tmp_path: Path
) -> None:
    edit(
        save_model(tmp_path) / "config.json", model_type=model_type, auto_map={"AutoModelForCausalLM": "modeling.Model"}
    )
    with pytest.raises(ModelError, match=r"needs its own code \(auto_map in config.json\)[^.]* from a model folder$"):
        build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelError, match=f"type '{model_type}', which is no causal language model of transformers"):
        build(tmp_path)


@pytest.mark.parametrize("model_type", sorted({TYPES[name] for name in WITH_CODE} & set(HERE)))
def test_code_beside_a_class_of_transformers_is_refused_with_what_to_do(model_type: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling.Model"})
    with pytest.raises(ModelError, match=f"transformers has {model_type} itself: .* take auto_map out of config.json"):
        checkpoint.find(str(folder), lambda *_: None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "auto_map"}))
    assert checkpoint.find(str(folder), lambda *_: None) == folder
