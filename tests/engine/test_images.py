"""What is written about images is what transformers' own float32 `generate` writes, alone and beside anything else."""

import io
import json
import re
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoModelForMultimodalLM, Siglip2ImageProcessor
from transformers.image_transforms import convert_to_rgb

from nbgen.engine import image, media_options, processor_folder
from nbgen.engine.assembly import Assembly
from nbgen.engine.media_encoder import MediaEncoder, placeholders
from nbgen.engine.media_prompt import MediaPrompt
from nbgen.engine.model_runner import ModelRunner
from nbgen.engine.processor import READS_SPECIAL_TOKENS_AS_TEXT, Processor
from nbgen.errors import InvalidRequest
from nbgen.messages import (
    ChatMessage,
    ContentPart,
    GenerateRequest,
    LogprobOptions,
    Media,
    Tensor,
    ToolCall,
    ToolOptions,
)
from nbgen.sampling_params import SamplingParams
from tests.chat_templates import CALLS, template
from tests.conftest import at_least
from tests.engine.conftest import build, generate, ids
from tests.engine.multimodal import MULTIMODAL, VIDEOS, save
from tests.engine.test_cuda_graphs import with_graphs

README = Path(__file__).parents[2] / "README.md"
IMAGES = [
    name for name, family in MULTIMODAL.items() if family.type == "image" and at_least("transformers", family.since)
]
NEW_TOKENS = 8
#: Of Exif.
ORIENTATION, QUARTER_TURN = 0x0112, 6
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
PLAIN = GenerateRequest(rid="plain", text="Nothing to see here, only words and more words.", params=PARAMS)


def picture(seed: int, width: int = 90, height: int = 60) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def media(*images: Image.Image) -> list[Media]:
    def png(image: Image.Image) -> memoryview:
        image.save(buffer := io.BytesIO(), "PNG")
        return memoryview(buffer.getvalue())

    return [Media(type="image", data=png(image)) for image in images]


class Reference:
    """transformers' own greedy continuations in float32, one prompt at a time."""

    def __init__(self, folder: Path) -> None:
        self.processor = processor_folder.load(folder)
        self.model = AutoModelForMultimodalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def inputs(self, text: str, images: list[Image.Image]) -> Any:
        return self.processor(text=[text], images=images or None, return_tensors="pt")

    def answer(self, text: str, images: list[Image.Image]) -> list[int]:
        return self.generate(self.inputs(text, images))

    def generate(self, inputs: Any) -> list[int]:
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return self.model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :].tolist()


class Served:
    """A family's engine, and its reference."""

    def __init__(self, name: str, folder: Path) -> None:
        self.family = MULTIMODAL[name]
        self.folder = save(folder, name)
        self.reference = Reference(self.folder)
        self.assembly: Assembly = build(self.folder, prefill_chunk=16)

    @property
    def place(self) -> int:
        """The id that stands where an image's features go."""
        return next(token for token, kind in placeholders(self.reference.model.config).items() if kind == "image")

    def text(self, *words: str) -> str:
        """The words with a placeholder between each two."""
        return self.family.placeholder.join(words)

    def answers(self, *requests: GenerateRequest) -> list[list[int]]:
        outputs = generate(self.assembly, list(requests))
        return [ids(outputs[request.rid]) for request in requests]


@pytest.fixture(scope="module", params=IMAGES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("images") / request.param)


def test_images_are_described_as_transformers_does(served: Served) -> None:
    one, two, other = picture(1), picture(2, 70, 80), picture(3)
    cases = [
        (served.text("What is ", "? Say."), [one]),
        (served.text("", " and ", " differ how?"), [one, two]),
        (served.text("What is ", "? Say."), [other]),
    ]
    expected = [served.reference.answer(text, images) for text, images in cases]
    assert len({tuple(answer) for answer in expected}) == 3, "the images make no difference: nothing was tested"
    requests = [
        GenerateRequest(rid=f"r{i}", text=text, media=media(*images), params=PARAMS)
        for i, (text, images) in enumerate(cases)
    ]
    plain = served.reference.answer(PLAIN.text, [])
    assert served.assembly.model.tier == served.family.tier
    assert "image" in served.assembly.model.media
    assert served.answers(requests[0]) == expected[:1], "alone"
    assert served.answers(PLAIN, *requests) == [plain, *expected], "with text and others in one batch"
    assert [served.answers(request)[0] for request in requests] == expected, "on prefix hits"


def test_a_prefix_is_reused_for_the_same_image_only(served: Served) -> None:
    def cached(rid: str, seed: int) -> int:
        text = served.text("Tell me about ", " at length.")
        request = GenerateRequest(rid=rid, text=text, media=media(picture(seed)), params=PARAMS)
        return generate(served.assembly, [request])[rid][0].cached_tokens

    served.assembly.engine.flush_cache()
    first, again, other = cached("first", 5), cached("again", 5), cached("other", 6)
    prompt = served.reference.inputs(served.text("Tell me about ", " at length."), [picture(5)])["input_ids"][0]
    before = prompt.tolist().index(served.place)
    # So short a prompt leaves no snapshot of a recurrent state.
    shared = (len(prompt) - 1, before) if served.family.tier == "A" else (0, 0)
    assert (first, again, other) == (0, *shared), "to another image's prompt, what stands before it"


def test_a_long_beginning_with_an_image_is_reused(served: Served) -> None:
    texts = [served.text("See ", " and say at length what it shows, " * 3 + word) for word in ("one", "two", "three")]
    image = picture(7)
    expected = [served.reference.answer(text, [image]) for text in texts]
    parts = len(served.reference.inputs(texts[0], [image])["input_ids"][0]) - len("one")
    requests = [
        GenerateRequest(rid=f"r{i}", text=text, media=media(image), params=PARAMS) for i, text in enumerate(texts)
    ]
    outputs = [generate(served.assembly, [request])[request.rid] for request in requests]
    assert [ids(each) for each in outputs] == expected
    assert parts // 16 * 16 <= outputs[-1][-1].cached_tokens <= parts + 1


def test_samples_logprobs_and_preemption(served: Served) -> None:
    text, images = served.text("What is ", "? Say."), [picture(1)]
    expected = served.reference.answer(text, images)
    inputs = served.reference.inputs(text, images)
    n = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, n=2)
    options = LogprobOptions(start=0, top=2)
    request = GenerateRequest(rid="n", text=text, media=media(*images), params=n, logprobs=options)
    outputs = generate(served.assembly, [request])["n"]
    assert [ids(outputs, 0), ids(outputs, 1)] == [expected, expected]
    assert outputs[0].prompt_tokens == inputs["input_ids"].shape[1], "the expanded prompt is counted"
    assert outputs[0].media_tokens == {"image": inputs["input_ids"][0].tolist().count(served.place)}
    with torch.inference_mode():
        scores = served.reference.model(**inputs).logits[0].log_softmax(-1)
    wanted = scores[:-1].gather(1, inputs["input_ids"][0, 1:, None])[:, 0]
    got = [each.token[0] for each in outputs[0].prompt_logprobs[1:]]
    torch.testing.assert_close(torch.tensor(got), wanted, atol=2e-3, rtol=1e-3)
    assert outputs[0].logprobs[0].token[0] == pytest.approx(float(scores[-1].max()), abs=2e-3)


def test_preemption_changes_nothing(served: Served) -> None:
    text = served.text("What is ", "? Say.")
    expected = [served.reference.answer(text, [picture(seed)]) for seed in (1, 3)]
    length = served.reference.inputs(text, [picture(1)])["input_ids"].shape[1]
    layers, keys_and_values, heads, float32 = 2, 2, 2, 4
    block = layers * keys_and_values * 16 * heads * 16 * float32
    cramped = build(served.folder, kv_cache_bytes=(2 * -(-length // 16)) * block)
    requests = [
        GenerateRequest(rid=f"r{seed}", text=text, media=media(picture(seed)), params=PARAMS) for seed in (1, 3)
    ]
    outputs = generate(cramped, requests)
    assert [ids(outputs[request.rid]) for request in requests] == expected
    status = cramped.engine.status()
    assert status.blocks_free == status.blocks_total


def test_a_chat_with_images_goes_through_the_models_template(served: Served) -> None:
    reads_typed = served.family.reads_typed and READS_SPECIAL_TOKENS_AS_TEXT
    image, words = picture(1), f"What is this, {served.family.placeholder if reads_typed else ''}?"
    parts = [ContentPart(type="image"), ContentPart(type="text", text=words)]
    message = ChatMessage(role="user", content=parts)
    request = GenerateRequest(rid="chat", messages=[message], media=media(image), params=PARAMS)
    conversation = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": words}]}]
    inputs = served.reference.processor.apply_chat_template(
        conversation,
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        **({"sanitize_control_tokens": True} if reads_typed else {}),
        return_tensors="pt",
    )
    assert served.answers(request) == [served.reference.generate(inputs)]
    # Where it cannot be told apart, a typed placeholder is refused.
    typed = GenerateRequest(rid="typed", messages=[ChatMessage(role="user", content=words)], params=PARAMS)
    (output, *_) = generate(served.assembly, [typed])["typed"]
    letters = len(words) + 3  # its own tokens: who speaks, the end, who speaks next
    assert output.prompt_tokens == letters, "a placeholder that was typed is text"
    if not reads_typed:
        bad = ChatMessage(role="user", content=served.family.placeholder)
        with pytest.raises(InvalidRequest, match="place for media"):
            served.assembly.admission.sequences(GenerateRequest(rid="bad", messages=[bad]))


def test_ids_are_taken_with_one_placeholder_or_all(served: Served) -> None:
    text, image = served.text("What is ", "? Say."), picture(1)
    expected = served.reference.answer(text, [image])
    expanded = served.reference.inputs(text, [image])["input_ids"][0].tolist()
    single = served.reference.processor.tokenizer.encode(text)
    for prompt in (single, expanded):
        request = GenerateRequest(rid="ids", input_ids=prompt, media=media(image), params=PARAMS)
        assert served.answers(request) == [expected]
    expanded.remove(served.place)
    short = GenerateRequest(rid="short", input_ids=expanded, media=media(image), params=PARAMS)
    with pytest.raises(InvalidRequest, match="placeholders"):
        served.assembly.admission.sequences(short)


def tensors(values: dict[str, torch.Tensor]) -> list[Tensor]:
    """As a client sends them."""
    types = {torch.float32: "FP32", torch.int64: "INT64", torch.bool: "BOOL"}
    return [
        Tensor(
            name=name, datatype=types[value.dtype], shape=tuple(value.shape), data=memoryview(value.numpy().tobytes())
        )
        for name, value in values.items()
    ]


def test_what_the_processor_made_is_taken(served: Served) -> None:
    text, image = served.text("What is ", "? Say."), picture(1)
    made = dict(served.reference.inputs(text, [image]))
    prompt = made["input_ids"][0].tolist()
    item = Media(type="image", format="processor_output", tensors=tensors(made))
    requests = [
        GenerateRequest(rid="ids", input_ids=prompt, media=[item], params=PARAMS),
        GenerateRequest(rid="own", text="", media=[item], params=PARAMS),
    ]
    assert served.answers(*requests) == [served.reference.answer(text, [image])] * 2


def test_what_is_embedded_already_is_taken(served: Served) -> None:
    text, image = served.text("What is ", "? Say."), picture(1)
    made = served.reference.inputs(text, [image])
    prompt = made["input_ids"][0].tolist()
    prepared = MediaPrompt(prompt, prompt, {k: v for k, v in made.items() if k not in ("input_ids", "attention_mask")})
    MediaEncoder(served.reference.model).encode(prepared)
    places = [index for index, token in enumerate(prompt) if token == served.place]
    encoded = prepared.encoded
    feature = torch.cat([encoded.embeds[places], *encoded.deep], dim=1)
    grid = {name: value for name, value in made.items() if name.endswith("grid_thw")}
    item = Media(type="image", format="precomputed_embedding", tensors=tensors({"feature": feature, **grid}))
    request = GenerateRequest(rid="e", input_ids=prompt, media=[item], params=PARAMS)
    assert served.answers(request) == [served.reference.answer(text, [image])]
    short = Media(type="image", format="precomputed_embedding", tensors=tensors({"feature": feature[1:], **grid}))
    with pytest.raises(InvalidRequest, match=f"{len(places) - 1} rows.*{len(places)} placeholders"):
        served.assembly.admission.sequences(GenerateRequest(rid="e", input_ids=prompt, media=[short], params=PARAMS))


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


def test_each_image_has_one_place(served: Served) -> None:
    text, images = served.text("", "", "What are they?"), [picture(1), picture(2)]
    expected = served.reference.answer(text, images)
    bare = GenerateRequest(rid="bare", text="What are they?", media=media(*images), params=PARAMS)
    assert served.answers(bare) == [expected], "without a place in the text they come first"
    with pytest.raises(InvalidRequest, match="stands for one image each; 1 came"):
        served.assembly.admission.sequences(GenerateRequest(rid="x", text=text, media=media(picture(1))))


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
    refused(Media(type="image", data=whole, options={"size": 5000}), words="size is 5000; for 1 images it is 0 to 707")
    refused(Media(type="image", data=whole, options={"size": -3}), words="size is -3; for 1 images it is 0 to 707")
    for options in ({"do_resize": "x"}, {"image_mean": "a"}, {"size": 0}):
        refused(Media(type="image", data=whole, options=options), words="processor refuses this prompt, its media or")
    refused(*media(picture(1, 1, 300)), words="1 x 300; one side is at most 200 times the other")
    large = media(Image.new("RGB", (6000, 6000)))
    refused(*large * 3, text="<image>" * 3, words="images 1 to 3 have 108 megapixels together; .* at most 100")


def test_media_that_do_not_fit_end_their_own_request(llava: Served, caplog: pytest.LogCaptureFixture) -> None:
    pixels = tensors({"pixel_values": torch.zeros(1, 3, 28, 28)})
    item = Media(type="image", format="processor_output", tensors=pixels)
    bad = GenerateRequest(rid="bad", text="<image> once", media=[item], params=PARAMS)
    outputs = generate(llava.assembly, [bad, PLAIN])
    assert (outputs["bad"][0].finish_reason.type, outputs["bad"][0].finish_reason.status) == ("error", 400)
    assert len(ids(outputs["plain"])) == NEW_TOKENS
    assert "Traceback" in caplog.text, "it may be a fault of the model's code"


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


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_the_readme_names_each_family_with_its_medium(kind: str) -> None:
    row = re.search(rf"^\| {kind} \| ([^|]+) \|$", README.read_text(), re.MULTILINE)
    assert row, f"no row of {kind}"
    own = VIDEOS if kind == "video" else [name for name, family in MULTIMODAL.items() if family.type == kind]
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


@pytest.mark.parametrize("size", [(1, 1), (1, 150), (150, 1)])
def test_odd_images_are_answered(served: Served, size: tuple[int, int]) -> None:
    text, image = served.text("What is ", "? Say."), picture(1, *size)
    request = GenerateRequest(rid="odd", text=text, media=media(image), params=PARAMS)
    try:
        expected = served.reference.answer(text, [image])
    except ValueError:  # too narrow for what the processor makes of it
        with pytest.raises(InvalidRequest, match="processor refuses"):
            served.assembly.admission.sequences(request)
        return
    except RuntimeError:  # the model itself fails at an image of one patch
        assert generate(served.assembly, [request])["odd"][-1].finish_reason.status == 400
        return
    assert served.answers(request) == [expected]


def test_a_chat_too_long_for_any_context_is_refused_before_its_template_works(served: Served) -> None:
    long = "a" * 16 * served.assembly.model.context_length + "a"
    parts = [ContentPart(type="text", text=long), ContentPart(type="image")]
    for content, images in ((long, []), (parts, media(picture(1)))):
        chat = GenerateRequest(rid="c", messages=[ChatMessage(role="user", content=content)], media=images)
        unasked = mock.patch.object(Processor, "_chat", side_effect=AssertionError)
        with unasked, pytest.raises(InvalidRequest, match="bytes"):
            served.assembly.admission.sequences(chat)


@pytest.mark.parametrize(
    ("form", "mode"),
    [("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"), ("PNG", "1"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("BMP", "L")],
)
def test_files_of_all_kinds_become_rgb(form: str, mode: str) -> None:
    made = Image.fromarray(np.full((6, 9), 300, np.uint16)) if mode == "I;16" else picture(1, 9, 6).convert(mode)
    made.save(buffer := io.BytesIO(), form)
    decoded = image.decode(memoryview(buffer.getvalue()), "image 1")
    assert (decoded.mode, decoded.size) == ("RGB", (9, 6))


def test_what_is_transparent_lies_on_white_as_transformers_has_it() -> None:
    drawn = Image.new("RGBA", (9, 6))
    drawn.putpixel((2, 3), (0, 0, 0, 255))
    drawn.putpixel((3, 3), (200, 0, 0, 100))
    few = drawn.convert("P")
    few.info["transparency"] = few.getpixel((0, 0))
    for made in (drawn, drawn.convert("LA"), few):
        made.save(buffer := io.BytesIO(), "PNG")
        decoded = image.decode(memoryview(buffer.getvalue()), "image 1")
        if at_least("transformers", "5.24"):
            assert decoded.tobytes() == convert_to_rgb(Image.open(buffer)).tobytes()
        assert (decoded.getpixel((0, 0)), decoded.getpixel((2, 3))) == ((255, 255, 255), (0, 0, 0))


def test_greys_of_16_bits_are_seen_by_their_upper_ones() -> None:
    ramp = np.linspace(0, 65_535, 256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(buffer := io.BytesIO(), "PNG")
    decoded = np.asarray(image.decode(memoryview(buffer.getvalue()), "image 1"))
    np.testing.assert_array_equal(decoded, np.repeat((ramp >> 8)[..., None], 3, axis=2))


def test_of_an_animation_the_first_frame_is_seen_and_a_photo_is_upright() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    frames[0].save(buffer := io.BytesIO(), "GIF", save_all=True, append_images=frames[1:])
    assert image.decode(memoryview(buffer.getvalue()), "image 1").getpixel((0, 0)) == (255, 0, 0)
    exif = Image.Exif()
    exif[ORIENTATION] = QUARTER_TURN
    picture(1, 90, 60).save(buffer := io.BytesIO(), "JPEG", exif=exif)
    assert image.decode(memoryview(buffer.getvalue()), "image 1").size == (60, 90)


@pytest.mark.parametrize("size", [(20_000, 20_000), (12_000, 9_000), (8_000, 7_000), (17_000, 10)])
def test_a_picture_too_large_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    with pytest.raises(InvalidRequest, match=r"megapixels|16384"):
        image.decode(memoryview(b"\x89PNG\r\n\x1a\n" + b"".join(parts)), "image 1")
