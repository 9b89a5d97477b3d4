"""What Gemma 4 does that no other family with eyes and ears does, beside transformers' own scores."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from nbgen.engine_config import BLOCK_SIZE
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, ContentPart, GenerateRequest, LogprobOptions, Tensor
from nbgen.sampling_params import SamplingParams
from tests.conftest import at_least, edit
from tests.engine import test_audio, test_videos
from tests.engine.conftest import build, generate, ids
from tests.engine.image_requests import PARAMS, PLAIN, Reference, Served, media, picture
from tests.engine.multimodal import MULTIMODAL, save
from tests.soak import soaking

pytestmark = pytest.mark.skipif(not at_least("transformers", MULTIMODAL["gemma4_e2b"].since), reason="no Gemma 4")
KINDS = ["gemma4_e2b", "gemma4_31b"]
#: That makes any token the next one.
BIAS = 100.0
SEEN = LogprobOptions(start=0, top=2)


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("gemma4") / request.param)


def scored(outputs: list[Any]) -> torch.Tensor:
    """The log-probabilities of a prompt's and its answer's tokens, but the first."""
    prompt = [each.token[0] for each in outputs[0].prompt_logprobs[1:]]
    return torch.tensor(prompt + [each.token[0] for output in outputs for each in output.logprobs])


@torch.inference_mode()
def reference_scores(model: Any, inputs: dict[str, torch.Tensor], answer: list[int], bias: float = 0.0) -> torch.Tensor:
    """The same of transformers' own forward over these tokens and an answer, whose first token has a `bias`."""
    tokens = torch.cat([inputs["input_ids"], torch.tensor([answer])], dim=1)
    scores = model(**{**inputs, "input_ids": tokens, "attention_mask": torch.ones_like(tokens)}).logits[0, :-1]
    scores[-len(answer) :, answer[0]] += bias
    return scores.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def test_ids_of_media_without_media_have_the_scores_of_padding(served: Served) -> None:
    """As in transformers: given or sampled, in C++, and beside a prompt with an image."""
    config = served.reference.model.config
    places = [config.image_token_id, config.video_token_id, config.audio_token_id]
    prompt = [40, places[0], 50, *places, *range(60, 80), places[1]]
    for place in places:
        bias = SamplingParams(max_new_tokens=4, temperature=0.0, ignore_eos=True, logit_bias={place: BIAS})
        plain = GenerateRequest(rid="plain", input_ids=prompt, params=bias, logprobs=SEEN)
        image = GenerateRequest(rid="image", text=served.text("See ", "!"), media=media(picture(1)), params=PARAMS)
        beside = GenerateRequest(rid="beside", input_ids=[41, *prompt], params=bias, logprobs=SEEN)
        alone, both = generate(served.assembly, [plain]), generate(served.assembly, [image, beside])
        assert ids(alone["plain"]) == ids(both["beside"]) == [place] * 4
        for first, outputs in (([], alone["plain"]), ([41], both["beside"])):
            tokens = {"input_ids": torch.tensor([[*first, *prompt]])}
            wanted = reference_scores(served.reference.model, tokens, [place] * 4, BIAS)
            torch.testing.assert_close(scored(outputs), wanted, atol=2e-3, rtol=1e-3)


def test_scores_are_bent_by_their_cap(served: Served, tmp_path: Path) -> None:
    """A low one, with which no score is far from another: of text, which C++ computes, and beside an image."""
    folder, cap = save(tmp_path, served.folder.name), 0.5
    text_config = json.loads((folder / "config.json").read_text())["text_config"]
    edit(folder / "config.json", text_config=text_config | {"final_logit_softcapping": cap})
    reference, assembly = Reference(folder), build(folder)
    assert assembly.engine._runner.native_model is not None
    text = served.text("What is ", "? Say.")
    inputs = [dict(reference.inputs(*each)) for each in ((PLAIN.text, []), (text, [picture(1)]))]
    requests = [
        GenerateRequest(rid="plain", text=PLAIN.text, params=PARAMS, logprobs=SEEN),
        GenerateRequest(rid="image", text=text, media=media(picture(1)), params=PARAMS, logprobs=SEEN),
    ]
    for outputs in [*(generate(assembly, [each]) for each in requests), generate(assembly, requests)]:
        for rid, found in outputs.items():
            wanted = reference_scores(reference.model, inputs[rid == "image"], ids(found))
            assert wanted.max() - wanted.min() < 3 * cap
            torch.testing.assert_close(scored(found), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seen", [0, 1], ids=["in C++", "beside an image"])
def test_ids_of_media_stay_padding_beside_a_prompt_given_as_embeddings(
    seen: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    served = Served("gemma4_31b", tmp_path_factory.mktemp("embeds") / "gemma4_31b")
    model = served.reference.model
    words, prompt = list(range(40, 60)), [40, model.config.image_token_id, 50, model.config.audio_token_id, 60]
    rows = model.get_input_embeddings()(torch.tensor(words)).detach().numpy()
    embeds = Tensor(name="", datatype="FP32", shape=rows.shape, data=memoryview(rows).cast("B"))
    requests = [
        GenerateRequest(rid="embeds", input_embeds=embeds, params=PARAMS),
        GenerateRequest(rid="ids", input_ids=prompt, params=PARAMS, logprobs=SEEN),
        GenerateRequest(rid="image", text=served.text("See ", "!"), media=media(picture(1)), params=PARAMS),
    ]
    outputs = generate(served.assembly, requests[: 2 + seen])
    assert ids(outputs["embeds"]) == served.reference.generate({"input_ids": torch.tensor([words])})
    wanted = reference_scores(model, {"input_ids": torch.tensor([prompt])}, ids(outputs["ids"]))
    torch.testing.assert_close(scored(outputs["ids"]), wanted, atol=2e-3, rtol=1e-3)


def test_a_prompt_may_have_an_image_and_a_sound(served: Served) -> None:
    """Of a model that has ears: that its processor has some is not enough."""
    text, image, sound = "See <|image|>, hear <|audio|>. What is it?", picture(1), test_audio.sound(440)
    request = GenerateRequest(
        rid="both", text=text, media=[*media(image), test_audio.media(sound)], params=PARAMS, logprobs=SEEN
    )
    if served.reference.model.config.audio_config is None:
        assert served.assembly.model.media == ["image", "video"]
        with pytest.raises(InvalidRequest, match="takes no audio; it takes image and video"):
            served.assembly.admission.sequences(request)
        return
    assert served.assembly.model.media == ["audio", "image", "video"]
    made = served.reference.processor(
        text=[text], images=[image], audio=[sound], sampling_rate=test_audio.RATE, return_tensors="pt"
    )
    assert served.answers(PLAIN, request) == [served.reference.answer(PLAIN.text, []), served.reference.generate(made)]


def test_preemption_between_layers_of_other_widths_changes_nothing(served: Served) -> None:
    """Both prompts have just room enough in the caches of sliding and full layers, and their answers have not."""
    text = served.text("What is ", "? Say.")
    length = served.reference.inputs(text, [picture(1)])["input_ids"].shape[1]
    text += "." * (-(length + 2) % BLOCK_SIZE)
    expected = [served.reference.answer(text, [picture(seed)]) for seed in (1, 3)]
    blocks = 2 * -(-length // BLOCK_SIZE)
    cramped = build(served.folder, kv_cache_bytes=blocks * served.assembly.engine._runner.cache.bytes_per_block)
    requests = [
        GenerateRequest(rid=f"r{seed}", text=text, media=media(picture(seed)), params=PARAMS) for seed in (1, 3)
    ]
    outputs = generate(cramped, requests)
    assert cramped.engine.status().preemptions
    assert [ids(outputs[request.rid]) for request in requests] == expected


def test_a_processor_is_found_by_its_tokenizer_as_published(tmp_path: Path) -> None:
    """With sections of the published files, one of whose classes is torchvision's, and no class of the whole."""
    folder = save(tmp_path / "gemma4_e2b", "gemma4_e2b")
    config = json.loads((folder / "processor_config.json").read_text())
    whole = {"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3}
    whole |= {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "patch_size": 4, "pooling_kernel_size": 3}
    video = {**whole, "do_sample_frames": True, "max_soft_tokens": 70, "num_frames": 32, "return_metadata": False}
    config["video_processor"] = {**video, "video_processor_type": "Gemma4VideoProcessor"}
    config["image_processor"] |= {"image_seq_length": 280, "image_processor_type": "Gemma4ImageProcessor"}
    del config["processor_class"]
    (folder / "processor_config.json").write_text(json.dumps(config))
    admission, image = build(folder).admission, media(picture(1))
    message = ChatMessage(role="user", content=[ContentPart(type="image"), ContentPart(type="video")])
    request = GenerateRequest(rid="c", messages=[message], media=[*image, test_videos.clip(1, 2)])
    (sequence,) = admission.sequences(request)
    assert sequence.media.tokens == {"image": 60, "video": 2 * 60}


def test_how_many_tokens_an_image_has_may_be_asked_for_and_what_they_are_made_of_may_not(served: Served) -> None:
    image, text = picture(1), served.text("What is ", "? Say.")

    def request(**options: int) -> GenerateRequest:
        return GenerateRequest(
            rid="r", text=text, params=PARAMS, media=[structs.replace(*media(image), options=options)]
        )

    (sequence,) = served.assembly.admission.sequences(request(max_soft_tokens=140))
    assert 70 < sequence.media.tokens["image"] <= 140
    for options, words in (
        ({"max_soft_tokens": 1121}, "max_soft_tokens is 1121; for 1 images it is 0 to 1120"),
        ({"max_soft_tokens": 71}, "processor refuses"),
        ({"pooling_kernel_size": 700}, "no option 'pooling_kernel_size'"),
        ({"patch_size": 64}, "no option 'patch_size'"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            served.assembly.admission.sequences(request(**options))


@pytest.mark.parametrize(
    "weights", [{"dtype": "bfloat16"}, soaking({"quantization": "int8"}), {"quantization": "int4"}], ids=str
)
@pytest.mark.parametrize("name", KINDS)
def test_towers_run_whatever_the_weights_are_made_to(name: str, weights: dict[str, str], tmp_path: Path) -> None:
    """Its code looks at the weight of a layer in a tower, and of a prompt's first chunk no scores are wanted."""
    folder = save(tmp_path / name, name)
    reference, assembly = Reference(folder), build(folder, prefill_chunk=16, **weights)
    requests = [
        GenerateRequest(
            rid=str(seed), text="What is <|image|>? Say.", media=media(picture(seed)), params=PARAMS, logprobs=SEEN
        )
        for seed in (1, 2)
    ]
    if name == "gemma4_e2b":
        heard = [test_audio.media(test_audio.sound(440))]
        requests.append(
            GenerateRequest(rid="s", text="What is <|audio|>? Say.", media=heard, params=PARAMS, logprobs=SEEN)
        )
    outputs = generate(assembly, requests)
    assert all(len(ids(found)) == PARAMS.max_new_tokens for found in outputs.values())
    for seed in (1, 2):
        found = outputs[str(seed)]
        right, other = (dict(reference.inputs(requests[0].text, [picture(each)])) for each in (seed, 3))
        wanted, wrong = (reference_scores(reference.model, each, ids(found)) for each in (right, other))
        assert (scored(found) - wanted).abs().mean() < 0.9 * (scored(found) - wrong).abs().mean()
