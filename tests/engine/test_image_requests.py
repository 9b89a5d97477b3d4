"""Images around the model: templates, adapters and towers, and what is refused or fails, each request for itself."""

import json
import re
from collections.abc import Set
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import Siglip2ImageProcessor

from nbgen.engine import media_options
from nbgen.engine.assembly import Assembly
from nbgen.engine.media_encoder import placeholders
from nbgen.engine.model_runner import ModelRunner
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, ContentPart, GenerateRequest, Media, ToolCall, ToolOptions
from tests.chat_templates import CALLS, template
from tests.conftest import edit
from tests.engine import torchvision_families
from tests.engine.conftest import build, generate, ids
from tests.engine.image_requests import IMAGES, NEW_TOKENS, PARAMS, PLAIN, Served, media, picture, tensors
from tests.engine.multimodal import MULTIMODAL, VIDEOS, save
from tests.engine.test_cuda_graphs import with_graphs

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served("llava", tmp_path_factory.mktemp("images") / "llava")


def test_tools_go_through_the_processors_template(tmp_path: Path) -> None:
    folder = save(tmp_path / "caller", "llava")
    content = "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% else %}<image>{% endif %}{% endfor %}"
    described = "{% for t in tools or [] %}{{ t.function.description + '' }}{% endfor %}"
    calls = template(CALLS["objects"]).replace("{{ m.content or '' }}", content)
    (folder / "chat_template.jinja").write_text(described + calls)
    admission = build(folder).admission
    parts = [ContentPart(type="image"), ContentPart(type="text", text="What is it?")]
    turns = [ChatMessage(role="user", content=parts)]
    tools = ToolOptions(tools=[{"type": "function", "function": {"name": "look", "description": "-"}}], required=True)
    asked = GenerateRequest(rid="c", messages=turns, media=media(picture(1)), tools=tools, parts=True, params=PARAMS)
    (sequence,) = admission.sequences(asked)
    assert '"name": "look"' in admission._tokenizer.text(sequence.prompt_ids)
    assert "<tool_call>" in json.loads(sequence.params.structural_tag)["format"]["elements"][0]["value"]
    tools.tools.append({"type": "function", "function": {"name": "hear"}})
    with pytest.raises(InvalidRequest, match="cannot show the tool 'hear'"):
        admission.sequences(asked)
    call = ToolCall(id="1", name="look", arguments='{"where": "here"}')
    turns += [ChatMessage(role="assistant", tool_calls=[call]), ChatMessage(role="tool", content="a cat")]
    (again,) = admission.sequences(GenerateRequest(rid="d", messages=turns, media=media(picture(1)), params=PARAMS))
    assert '{"name": "look", "arguments": {"where": "here"}}' in admission._tokenizer.text(again.prompt_ids)
    with mock.patch.object(decoder := admission._processor._decoder, "image", wraps=decoder.image) as decoded:
        admission.sequences(
            GenerateRequest(rid="e", messages=turns, media=asked.media, params=PARAMS, drop_oldest=True)
        )
    assert decoded.call_count == 1
    admission.close()  # which the error's traceback holds on to


def test_text_of_a_known_language_model_is_written_from_ids_to_scores_by_ours(llava: Served) -> None:
    """All but the steps that images begin in."""
    runner = llava.assembly.engine._runner
    assert isinstance(runner, ModelRunner)
    assert runner.native_model is not None


def test_what_a_processor_makes_by_itself_may_be_asked_for() -> None:
    def found(patches: int) -> dict[str, Any]:
        asked = Media(type="image", data=memoryview(b""), options={"max_num_patches": patches})
        return media_options.of([asked], "image", Siglip2ImageProcessor(max_num_patches=256))

    assert found(200) == {"max_num_patches": 200}
    with pytest.raises(InvalidRequest, match="max_num_patches is 257; for 1 images it is 0 to 256"):
        found(257)


def test_what_is_no_image_is_refused(llava: Served) -> None:
    def refused(*items: Media, words: str, **changes: Any) -> None:
        request = GenerateRequest(rid="x", **{"text": "<image>", **changes}, media=list(items))
        with pytest.raises(InvalidRequest, match=words):
            llava.assembly.admission.sequences(request)

    whole = media(picture(1))[0].data
    refused(Media(type="image", data=whole[: len(whole) // 2]), words="image 1 .* cannot be decoded")
    refused(Media(type="image", data=memoryview(b"GIF89a nothing")), words="cannot be decoded")
    refused(Media(type="audio", data=whole), words="takes no audio; it takes image")
    refused(Media(type="video", data=whole), words="takes no video")
    refused(*media(*[picture(1)] * 17), text="<image>" * 17, words="17 media; at most 16")
    refused(Media(type="image", data=whole, options={"nope": 1}), words="no option 'nope'")
    for own in ("device", "rescale_factor"):
        refused(Media(type="image", data=whole, options={own: 1}), words=f"no option '{own}'")
    refused(Media(type="image", data=whole, options={"size": 5000}), words="size is 5000; for 1 images it is 0 to 707")
    refused(Media(type="image", data=whole, options={"size": -3}), words="size is -3; for 1 images it is 0 to 707")
    for options in ({"do_resize": "x"}, {"image_mean": "a"}, {"size": 0}):
        refused(Media(type="image", data=whole, options=options), words="processor refuses this prompt, its media or")
    refused(*media(picture(1, 1, 300)), words="1 x 300; one side is at most 200 times the other")
    large = media(Image.new("1", (6000, 6000)))
    refused(*large * 3, text="<image>" * 3, words="images 1 to 3 have 108 megapixels together; .* at most 100")


def test_media_that_do_not_fit_end_their_own_request(llava: Served, caplog: pytest.LogCaptureFixture) -> None:
    pixels = tensors({"pixel_values": torch.zeros(1, 3, 28, 28)})
    item = Media(type="image", format="processor_output", tensors=pixels)
    bad = GenerateRequest(rid="bad", text="<image> once", media=[item], params=PARAMS)
    outputs = generate(llava.assembly, [bad, PLAIN])
    assert (outputs["bad"][0].finish_reason.type, outputs["bad"][0].finish_reason.status) == ("error", 400)
    assert len(ids(outputs["plain"])) == NEW_TOKENS
    assert "Traceback" in caplog.text, "it may be a fault of the model's code"


def test_ids_of_a_processor_that_are_no_whole_numbers_are_refused(llava: Served) -> None:
    made = tensors({"pixel_values": torch.zeros(1, 3, 28, 28), "input_ids": torch.ones(1, 4)})
    item = Media(type="image", format="processor_output", tensors=made)
    with pytest.raises(InvalidRequest, match="must be whole numbers"):
        llava.assembly.admission.sequences(GenerateRequest(rid="f", text="", media=[item], params=PARAMS))


def test_media_for_which_there_is_no_memory_are_not_called_wrong(llava: Served) -> None:
    tower = llava.assembly.engine._runner.model.get_submodule("model.vision_tower")
    request = GenerateRequest(rid="r", text="What is <image>?", media=media(picture(11)), params=PARAMS)
    handle = tower.register_forward_hook(lambda *_: torch.empty(2**50))
    try:
        (output,) = generate(llava.assembly, [request])["r"]
    finally:
        handle.remove()
    assert (output.finish_reason.type, output.finish_reason.status) == ("error", 503)


def test_a_step_that_fails_before_its_forward_leaves_no_media_to_others(llava: Served) -> None:
    runner, words = llava.assembly.engine._runner, llava.text("look at ", " here")
    request = GenerateRequest(rid="1", text=words, media=media(picture(3)), params=PARAMS)
    with mock.patch.object(runner.lora, "of", side_effect=[nullcontext(), MemoryError, *[nullcontext()] * 99]):
        (answer,) = llava.answers(request)
    assert not runner.model.get_decoder()._forward_pre_hooks
    assert answer == llava.reference.answer(words, [picture(3)])


def test_a_model_of_text_refuses_media(tiny_engine: Assembly) -> None:
    parts = [ContentPart(type="image"), ContentPart(type="text", text="Hello")]
    chat = GenerateRequest(rid="c", messages=[ChatMessage(role="user", content=parts)], media=media(picture(1)))
    for request in (chat, GenerateRequest(rid="t", text="Hello", media=media(picture(1)))):
        with pytest.raises(InvalidRequest, match="reads text only"):
            tiny_engine.admission.sequences(request)


def test_a_place_for_images_and_videos_is_that_of_images() -> None:
    assert placeholders(SimpleNamespace(image_token_id=5, video_token_id=5)) == {5: "image"}


def test_a_model_whose_images_need_torchvision_says_so(tmp_path: Path) -> None:
    folder = save(tmp_path, "qwen2_vl")
    edit(folder / "processor_config.json", image_processor={"image_processor_type": "Lfm2VlImageProcessor"})
    assembly = build(folder)
    assert assembly.model.media == []
    with pytest.raises(InvalidRequest, match=r"media need torchvision, .* pip install torchvision where the server"):
        assembly.admission.sequences(GenerateRequest(rid="x", text="What is it?", media=media(picture(1))))
    assert generate(assembly, [PLAIN])["plain"]


@pytest.mark.parametrize(
    ("medium", "own"),
    [
        *((kind, {name for name, family in MULTIMODAL.items() if family.type == kind}) for kind in ("image", "audio")),
        ("video", VIDEOS.keys()),
        ("image, with torchvision", torchvision_families.IMAGES.keys()),
        ("video, with torchvision", torchvision_families.OF_VIDEOS.keys() - {"minimax_m3_vl"}),
    ],
)
def test_the_readme_names_each_family_with_its_medium(medium: str, own: Set[str]) -> None:
    row = re.search(rf"^\| {medium} \| ([^|]+) \|$", README.read_text(), re.MULTILINE)
    assert row, f"no row of {medium}"
    if medium == "image":
        own -= torchvision_families.IMAGES.keys()
    families = {MULTIMODAL[name].kind or name for name in own}
    assert row[1].split(", ") == [f"`{name}`" for name in sorted(families)]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*")  # peft reads it
def test_an_adapter_acts_on_the_towers_too(tmp_path: Path) -> None:
    served = Served("qwen2_5_vl", tmp_path / "model")
    text, images = served.text("What is ", "? Say."), [picture(1)]
    plain = served.reference.answer(text, images)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=r".*visual.*\.(qkv|gate_proj|up_proj|down_proj)")
    adapted = get_peft_model(served.reference.model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    expected = adapted.generate(
        **served.reference.inputs(text, images), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
    )[0, -NEW_TOKENS:].tolist()
    assert expected != plain, "the adapter makes no difference: nothing was tested"
    served.assembly.engine.install(served.assembly.adapters.load("a", str(tmp_path / "adapter")))
    requests = [
        GenerateRequest(rid=name, text=text, media=media(*images), params=PARAMS, adapter=adapter)
        for name, adapter in (("base", ""), ("adapted", "a"))
    ]
    assert served.answers(*requests) == [plain, expected]


def test_towers_run_once_for_the_same_image(llava: Served) -> None:
    runs: list[int] = []
    tower = llava.assembly.engine._runner.model.get_submodule("model.vision_tower")
    handle = tower.register_forward_hook(lambda *_: runs.append(1))
    try:
        for turn in ("What is <image>?", "Once more, what is <image>?", "What is <image>, in another namespace?"):
            namespace = ("other",) if "namespace" in turn else ()
            request = GenerateRequest(rid="t", text=turn, media=media(picture(9)), params=PARAMS, namespace=namespace)
            assert llava.answers(request) == [llava.reference.answer(turn, [picture(9)])]
    finally:
        handle.remove()
    assert len(runs) == 2


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3", *(name for name in IMAGES if name.startswith("gemma4"))])
def test_decodes_over_static_tensors_stand_where_they_should(name: str, tmp_path: Path) -> None:
    served = Served(name, tmp_path)
    graphs = with_graphs(served.assembly)
    text = served.text("What is ", "? Say.")
    requests = [
        GenerateRequest(rid=f"r{seed}", text=text, media=media(picture(seed)), params=PARAMS) for seed in (1, 3)
    ]
    expected = [served.reference.answer(text, [picture(seed)]) for seed in (1, 3)]
    plain = served.reference.answer(PLAIN.text, [])
    assert served.answers(PLAIN, *requests) == [plain, *expected]
    assert graphs._graphs, "no decode ran over them"
