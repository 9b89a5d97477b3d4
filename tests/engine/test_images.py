"""What is written about images is what transformers' own float32 `generate` writes, alone and beside anything else."""

from unittest import mock

import pytest
import torch

from nbgen.engine import given_media
from nbgen.engine.media_encoder import MediaEncoder
from nbgen.engine.media_prompt import MediaPrompt
from nbgen.engine.processor import READS_SPECIAL_TOKENS_AS_TEXT, Processor
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, ContentPart, GenerateRequest, LogprobOptions, Media
from nbgen.sampling_params import SamplingParams
from tests.engine.conftest import build, generate, ids
from tests.engine.image_requests import IMAGES, NEW_TOKENS, PARAMS, PLAIN, Served, media, picture, tensors
from tests.soak import seldom

#: Their images are cut, counted and placed as those of one of the others are.
ALIKE = {"qwen2_5_vl", "mistral3", "llava_next", "smolvlm", "internvl", "gemma4_31b"}


@pytest.fixture(scope="module", params=seldom(IMAGES, ALIKE))
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


@pytest.mark.parametrize("grid", [(1, 5000, 5000), (0, 5000, 5000), (1, -5000, 5000), (2**40, 2**40, 1)])
def test_a_grid_of_more_patches_than_the_prompt_has_places_for_is_refused(grid: tuple[int, ...]) -> None:
    given = {"pixel_values": torch.zeros(4, 12), "image_grid_thw": torch.tensor([grid])}
    item = Media(type="image", format="processor_output", tensors=tensors(given))
    request = GenerateRequest(rid="g", input_ids=[1, 9, 2], media=[item])
    with pytest.raises(InvalidRequest, match="image_grid_thw tells of more patches than the prompt's 3 tokens"):
        given_media.prompt(request, list, {9: "image"})


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


def test_each_image_has_one_place(served: Served) -> None:
    text, images = served.text("", "", "What are they?"), [picture(1), picture(2)]
    expected = served.reference.answer(text, images)
    bare = GenerateRequest(rid="bare", text="What are they?", media=media(*images), params=PARAMS)
    assert served.answers(bare) == [expected], "without a place in the text they come first"
    with pytest.raises(InvalidRequest, match="stands for one image each; 1 came"):
        served.assembly.admission.sequences(GenerateRequest(rid="x", text=text, media=media(picture(1))))


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
