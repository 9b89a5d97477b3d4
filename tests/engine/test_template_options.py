"""A client's options reach a chat template that reads them, and nothing else of transformers'."""

from pathlib import Path
from typing import Any

import pytest

from nbgen.engine import processor_folder, template_options
from nbgen.engine.processor import Processor
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, ContentPart, GenerateRequest
from tests.engine.conftest import tokenizer_of
from tests.engine.image_requests import media, picture
from tests.engine.multimodal import save
from tests.http_canary import Canary

TURN = [ChatMessage(role="user", content=[ContentPart(type="image"), ContentPart(type="text", text="What?")])]
SAID = "{{ '<|end|>' if twice else '' }}"


@pytest.fixture(scope="module", params=["one template", "named ones"])
def processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Processor:
    folder = save(tmp_path_factory.mktemp("seeing") / "qwen2_5_vl", "qwen2_5_vl")
    found: Any = processor_folder.load(folder)
    found.chat_template += SAID
    if request.param == "named ones":
        found.chat_template = {"default": found.chat_template, "rag": "{{ images }}"}
    return Processor(found, ["image"], {found.tokenizer.convert_tokens_to_ids("<|image_pad|>"): "image"})


def ids(processor: Processor, messages: list[ChatMessage] = TURN, **options: Any) -> Any:
    files = media(picture(1)) if messages is TURN else []
    request = GenerateRequest(rid="a", messages=messages, media=files, template_options=options)
    return processor.prompt(request, lambda _: []).ids


def test_a_template_gets_what_it_reads_and_the_processor_nothing(processor: Processor, tmp_path: Path) -> None:
    picture(2).save(tmp_path / "private.png")
    expected = ids(processor)
    assert len(ids(processor, twice=True)) == len(expected) + 1
    with Canary() as canary:
        ours = {"images": canary.url, "videos": canary.url, "audio": canary.url, "text": "other words"}
        for options in (ours, {"images": str(tmp_path / "private.png")}, {"min_pixels": 10**7, "max_pixels": 10**7}):
            assert ids(processor, **options) == expected
            plain = [ChatMessage(role="user", content="hi")]
            assert processor.encode_chat(plain, options) == processor.encode_chat(plain, {})
    assert not canary.asked


@pytest.mark.parametrize(
    "option", ["sanitize_control_tokens", "load_audio_from_video", "processor_kwargs", "padding", "conversations"]
)
def test_what_transformers_reads_is_refused(option: str, processor: Processor, tmp_path: Path) -> None:
    if option not in template_options.RESERVED:
        pytest.skip("which this transformers does not read")
    tokenizer = tokenizer_of(tmp_path, "{{ opens }}")
    plain = [ChatMessage(role="user", content="hi")]
    for encode in (
        lambda: ids(processor, **{option: False}),
        lambda: processor.encode_chat(plain, {option: False}),
        lambda: tokenizer.encode_chat(plain, options={option: False}),
    ):
        with pytest.raises(InvalidRequest, match=f"^{option} is not an option that a template may be given"):
            encode()
    assert tokenizer.text(tokenizer.encode_chat(plain, options={"opens": "sesame"})) == "sesame"


def test_what_templates_read_is_known_with_all_of_transformers_tags() -> None:
    template = (
        "{% for m in messages %}{% if quiet %}{% break %}{% endif %}{% generation %}{{ mood }}{% endgeneration %}"
        "{% set own = 1 %}{{ own }}{% endfor %}"
    )
    options = {"quiet": True, "mood": "glad", "own": 2, "m": 3}
    assert template_options.read_by(template, options) == {"quiet": True, "mood": "glad"}
    assert template_options.read_by("{% odd %}{{ mood }}", options) == {}
    assert template_options.read_by({"rag": "{{ mood }}"}, options) == {}
