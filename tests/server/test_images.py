"""Images over HTTP, all the way: each dialect's answer is what transformers makes of the same image and text."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import at_least
from tests.engine.image_requests import NEW_TOKENS, Reference, picture
from tests.engine.multimodal import MULTIMODAL
from tests.http_canary import Canary
from tests.server.conftest import Server, events

NAME = "qwen2_5_vl"
PLACE = MULTIMODAL[NAME].placeholder
TEXT = f"What is {PLACE}? Say."
GREEDY = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True, "skip_special_tokens": False}


def png(image: Image.Image) -> bytes:
    image.save(file := io.BytesIO(), format="PNG")
    return file.getvalue()


def base64_of(image: Image.Image) -> str:
    return base64.b64encode(png(image)).decode()


def data_url(image: Image.Image) -> str:
    return f"data:image/png;base64,{base64_of(image)}"


def generate(server: Server, **fields: Any) -> Any:
    answer = server.http.post("generate", json={"text": TEXT, "sampling_params": GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_format_of_an_item_is_the_same_image(seeing: Server, reference: Reference) -> None:
    expected = reference.answer(TEXT, [picture(1)])
    made = reference.inputs(TEXT, [picture(1)])
    packed = made["pixel_values"].numpy()
    processed = {
        "format": "processor_output",
        "pixel_values": {
            "data": base64.b64encode(packed.astype("<f4").tobytes()).decode(),
            "dtype": "float32",
            "shape": list(packed.shape),
        },
        "image_grid_thw": made["image_grid_thw"].tolist(),
        "input_ids": made["input_ids"].tolist(),
    }
    listed = processed | {"pixel_values": packed.tolist()}
    one = picture(1)
    (seeing.folder / "one.png").write_bytes(png(one))
    for item in (base64_of(one), data_url(one), {"url": data_url(one), "detail": "low"}, "one.png", processed, listed):
        assert generate(seeing, image_data=item)["output_ids"] == expected
    assert generate(seeing, image_data=data_url(picture(2)))["output_ids"] != expected


def test_batches_samples_and_streams(seeing: Server, reference: Reference) -> None:
    one, two = picture(1), picture(2)
    texts = [TEXT, "plain", f"{PLACE} and {PLACE}?"]
    expected = [reference.answer(TEXT, [one]), reference.answer("plain", []), reference.answer(texts[2], [one, two])]
    images = [base64_of(one), None, [base64_of(one), data_url(two)]]
    answers = generate(seeing, text=texts, image_data=images)
    assert [answer["output_ids"] for answer in answers] == expected
    samples = generate(seeing, image_data=data_url(one), sampling_params={**GREEDY, "n": 2})
    assert [sample["output_ids"] for sample in samples] == [expected[0]] * 2
    body = {"text": TEXT, "image_data": data_url(one), "sampling_params": GREEDY, "stream": True}
    streamed = [event.data for event in events(seeing.http, "POST", "generate", json=body)]
    assert json.loads(streamed[-2])["output_ids"] == expected[0]


def test_a_large_file_comes_whole_and_text_passes_it(seeing: Server, reference: Reference) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1100, 1100, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    assert len(png(image)) > 3 * 2**20
    assert generate(seeing, image_data=base64_of(image))["output_ids"] == reference.answer(TEXT, [image])


def chat(*images: Image.Image) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


def test_chats_go_through_the_models_template(seeing: Server, reference: Reference) -> None:
    text = f"<|user|>{PLACE}What is it?<|end|><|assistant|>"
    expected = reference.processor.decode(reference.answer(text, [picture(1)]), skip_special_tokens=False)
    body = {"messages": chat(picture(1)), "max_tokens": NEW_TOKENS, "ignore_eos": True, "temperature": 0}
    body["skip_special_tokens"] = False
    answer = seeing.http.post("v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == expected
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(picture(1))}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    message = {**body, "model": "any", "messages": [{"role": "user", "content": blocks}]}
    assert seeing.http.post("v1/messages", json=message).json()["content"] == [{"type": "text", "text": expected}]
    run = {"messages": chat(picture(1)), "params": GREEDY, "stream": False, "chat": "seen"}
    assert seeing.http.post("api/v1/runs", json=run).json()["text"] == expected
    kept = seeing.http.get("api/v1/chats/seen").json()
    assert kept["messages"][0] == chat(picture(1))[0]
    assert kept["turns"][0]["content"] == chat(picture(1))[0]["content"]
    assert kept["run"]["messages"][0]["content"][0] == {"type": "image_url"}


def test_what_a_function_shows_is_seen(seeing: Server) -> None:
    asked = {"role": "user", "content": "look"}
    call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1"}
    shown = {"type": "input_image", "image_url": data_url(picture(1))}
    ending = {"max_output_tokens": NEW_TOKENS, "ignore_eos": True, "temperature": 0}
    seen, said = (
        seeing.http.post("v1/responses", json={"input": [asked, call, *rest], **ending}).json()
        for rest in (
            [result | {"output": [shown]}],
            [result | {"output": ""}, {"role": "user", "content": [shown]}],
        )
    )
    assert seen["output"][0]["content"] == said["output"][0]["content"]
    assert seen["usage"]["input_tokens"] == said["usage"]["input_tokens"]


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/responses", "api/v1/runs", "tokenize"])
def test_a_templates_options_are_no_media(seeing: Server, path: str) -> None:
    name = "template_options" if path == "api/v1/runs" else "chat_template_kwargs"
    turns = [{"role": "user", "content": "hi"}]
    body = {"input": "hi"} if path == "v1/responses" else {"messages": turns}
    with Canary() as canary:
        answer = seeing.http.post(path, json={**body, name: {"images": canary.url}})
        assert answer.status_code == 200, answer.text
        refused = seeing.http.post(path, json={**body, name: {"sanitize_control_tokens": False}})
    assert not canary.asked
    if at_least("transformers", "5.24"):  # which has that option for itself
        assert "sanitize_control_tokens is not an option that a template may be given" in refused.text


def test_a_prompt_without_a_place_has_its_image_first(seeing: Server, reference: Reference) -> None:
    expected = reference.answer(f"{PLACE}What?", [picture(1)])
    assert generate(seeing, text="What?", image_data=data_url(picture(1)))["output_ids"] == expected
    text = reference.processor.decode(expected, skip_special_tokens=False)
    part = {"type": "image_url", "image_url": {"url": data_url(picture(1))}}
    run = {"prompt": "What?", "media": [part], "params": GREEDY, "stream": False}
    assert seeing.http.post("api/v1/runs", json=run).json()["text"] == text
    triton = {"text_input": "What?", "exclude_input_in_output": True}
    triton |= {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
    for image in (base64_of(picture(1)), data_url(picture(1))):
        answer = seeing.http.post(f"v2/models/{NAME}/generate", json=triton | {"image": [image]})
        assert answer.json()["text_output"] == text, answer.text
    refused = seeing.http.post(f"v2/models/{NAME}/generate", json=triton | {"image": "http://localhost/a.png"})
    assert refused.json() == {"error": "`image`: send the image itself, as base64 or as a data URL"}
    assert "image" in [each["name"] for each in seeing.http.get(f"v2/models/{NAME}").json()["inputs"]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image_data": base64.b64encode(b"no image at all").decode()}, "cannot be decoded"),
        ({"image_data": data_url(picture(1)), "text": PLACE * 2}, "times"),
        ({"audio_data": base64.b64encode(b"RIFF").decode(), "text": "a"}, ""),
    ],
)
def test_what_does_not_fit_is_refused_and_sounds_are_left_out(seeing: Server, fields: Any, words: str) -> None:
    answer = seeing.http.post("generate", json={"text": TEXT, "sampling_params": GREEDY, **fields})
    assert answer.status_code == (400 if words else 200), answer.text
    assert words in answer.text
    seeing.idle()


def test_the_server_says_that_its_model_sees(seeing: Server) -> None:
    info = seeing.http.get("model_info").json()
    assert (info["has_image_understanding"], info["has_audio_understanding"]) == (True, False)
    assert seeing.http.get("server_info").json()["limits"]["media_bytes"]["image"] == 20 * 2**20
