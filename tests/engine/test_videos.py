"""What is written about a video's frames is what transformers' own float32 `generate` writes; frames become patches."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import Qwen2VLImageProcessorPil
from transformers.video_utils import VideoMetadata

from nbgen.bytes_elements import pack_bytes
from nbgen.engine import video
from nbgen.engine.media_encoder import MediaEncoder
from nbgen.engine.media_prompt import MediaPrompt
from nbgen.engine.video import Sampling
from nbgen.engine.video_frames import FramesProcessor, SeparateFrames
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, Media
from tests.conftest import at_least, edit
from tests.engine.conftest import build
from tests.engine.image_requests import PARAMS, PLAIN, Served, media, picture, tensors
from tests.engine.multimodal import MULTIMODAL, QWEN2_VIDEO, VIDEOS, save
from tests.engine.test_video_files import colours, movie

#: What stands for a video in Qwen's prompts, in which it is more than its token.
PLACE = "<|vision_start|><|video_pad|><|vision_end|>"
FAMILIES = [name for name in VIDEOS if at_least("transformers", MULTIMODAL[name].since)]
PATCH, MERGE, TIMES = 14, 2, 2


def clip(*seeds: int, **options: float) -> Media:
    files = pack_bytes(bytes(each.data) for seed in seeds for each in media(picture(seed)))
    return Media(type="video", format="frames", data=files, options=options)


def text_of(served: Served) -> str:
    video = served.family.video
    return f"What happens in {PLACE if video in PLACE else video}? Say."


def inputs(served: Served, *seeds: int) -> dict[str, torch.Tensor]:
    frames = np.stack([np.asarray(picture(seed)) for seed in seeds])
    times = VideoMetadata(total_num_frames=len(seeds), frames_indices=list(range(len(seeds))))
    told = {"video_metadata": [times], "do_sample_frames": False}
    made = served.reference.processor(text=[text_of(served)], videos=[frames], videos_kwargs=told, return_tensors="pt")
    return {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("videos") / request.param)


def test_frames_are_described_as_transformers_does(served: Served) -> None:
    reference, clips = served.reference, [(1, 2, 3, 4), (5, 6, 7, 8), (1, 2, 3)]
    expected = [reference.generate(inputs(served, *seeds)) for seeds in clips]
    assert expected[0] != expected[1], "the frames make no difference: nothing was tested"
    requests = [
        GenerateRequest(rid=f"v{i}", text=text_of(served), media=[clip(*seeds)], params=PARAMS)
        for i, seeds in enumerate(clips)
    ]
    assert {"image", "video"} <= {*served.assembly.model.media}
    assert served.answers(PLAIN, *requests) == [reference.answer(PLAIN.text, []), *expected], "in one batch"
    assert [served.answers(request)[0] for request in requests] == expected, "on prefix hits"


def test_beside_an_image_and_at_a_rate(served: Served) -> None:
    reference, text = served.reference, f"{served.family.placeholder} and {text_of(served)}"
    frames = np.stack([np.asarray(picture(seed)) for seed in (1, 2)])
    times = VideoMetadata(total_num_frames=2, fps=0.5, frames_indices=[0, 1])
    made = reference.processor(
        text=[text],
        images=[picture(9)],
        videos=[frames],
        videos_kwargs={"video_metadata": [times], "do_sample_frames": False},
        return_tensors="pt",
    )
    request = GenerateRequest(rid="v", text=text, media=[*media(picture(9)), clip(1, 2, fps=0.5)], params=PARAMS)
    assert served.answers(request) == [reference.generate(made)]


def test_what_the_processor_made_or_is_embedded_is_taken(served: Served) -> None:
    made = inputs(served, 1, 2, 3, 4)
    expected, prompt = served.reference.generate(made), made["input_ids"][0].tolist()
    item = Media(type="video", format="processor_output", tensors=tensors(made))
    assert served.answers(GenerateRequest(rid="p", input_ids=prompt, media=[item], params=PARAMS)) == [expected]
    rest = {name: value for name, value in made.items() if name not in ("input_ids", "attention_mask")}
    MediaEncoder(served.reference.model).encode(prepared := MediaPrompt(prompt, prompt, rest))
    place = served.reference.model.config.video_token_id
    places = [index for index, token in enumerate(prompt) if token == place]
    feature = torch.cat([prepared.encoded.embeds[places], *prepared.encoded.deep], dim=1)
    shapes = {name: made[name] for name in ("video_grid_thw", "second_per_grid_ts") if name in made}
    embedded = Media(type="video", format="precomputed_embedding", tensors=tensors({"feature": feature, **shapes}))
    assert served.answers(GenerateRequest(rid="e", input_ids=prompt, media=[embedded], params=PARAMS)) == [expected]


def test_what_is_no_video_is_refused(served: Served) -> None:
    def refused(item: Media, words: str) -> None:
        with pytest.raises(InvalidRequest, match=words):
            served.assembly.admission.sequences(
                GenerateRequest(rid="x", text=text_of(served), media=[item], params=PARAMS)
            )

    refused(Media(type="video", data=memoryview(b"an MP4")), "video 1 .* cannot be decoded: it must be a whole MP4")
    refused(
        Media(type="video", format="frames", data=pack_bytes([b"no image"])), "frame of video 1: number 1 .* decoded"
    )
    sizes = [bytes(each.data) for each in media(picture(1), picture(1, 30, 30))]
    refused(Media(type="video", format="frames", data=pack_bytes(sizes)), "have 2 sizes")
    refused(clip(1, 2, fps=0), "fps is 0; it is a number above 0")
    refused(clip(1, 2, nope=1), "no option 'nope' but fps")
    refused(clip(1, 2, num_frames=1), "no option 'num_frames' but fps")
    file = movie(colours(4))
    for options, words in (
        ({"nope": 1}, "no option 'nope' but fps and num_frames"),
        ({"num_frames": 257}, "num_frames is 257; it is a whole number, 1 to 256"),
        ({"num_frames": 1.5}, "num_frames is 1.5; it is a whole number"),
        ({"fps": "fast"}, "fps is 'fast'; it is a number above 0"),
        ({"fps": 1, "num_frames": 2}, "send one"),
    ):
        refused(Media(type="video", data=file, options=options), words)


def test_files_need_a_library_and_frames_do_not(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "find_spec", lambda _: None)
    request = GenerateRequest(
        rid="x", text=text_of(served), media=[Media(type="video", data=movie(colours(4)))], params=PARAMS
    )
    with pytest.raises(InvalidRequest, match=r"pip install 'nbgen\[video\]' .* or send the video's frames as images"):
        served.assembly.admission.sequences(request)
    assert served.answers(GenerateRequest(rid="f", text=text_of(served), media=[clip(1, 2)], params=PARAMS))


def test_a_file_is_described_as_its_frames_are(served: Served) -> None:
    reference, file = served.reference, movie(colours(48))
    step = getattr(reference.processor.video_processor, "temporal_patch_size", None) or 1
    cases = [
        ({}, Sampling(step=step)),
        ({"num_frames": 8}, Sampling(frames=8)),
        ({"fps": 5}, Sampling(fps=5, step=step)),
    ]
    expected, requests = [], []
    for index, (options, sampling) in enumerate(cases):
        found = video.decode(file, sampling, "")
        times = VideoMetadata(total_num_frames=48, fps=24.0, frames_indices=found.indices)
        told = {"video_metadata": [times], "do_sample_frames": False}
        made = reference.processor(
            text=[text_of(served)], videos=[found.pixels], videos_kwargs=told, return_tensors="pt"
        )
        expected.append(reference.generate(made))
        item = Media(type="video", data=file, options=options)
        requests.append(GenerateRequest(rid=f"v{index}", text=text_of(served), media=[item], params=PARAMS))
    assert [len(video.decode(file, sampling, "").indices) for _, sampling in cases[:2]] == [4, 8]
    assert served.answers(*requests) == expected


def naive(frames: list[np.ndarray]) -> np.ndarray:
    """Patches in the order in which they are merged, of normalized frames `[height, width, 3]`, two at a time."""
    rows, (height, width, _) = [], frames[0].shape
    side = PATCH * MERGE
    for first, second in zip(frames[::2], frames[1::2], strict=True):
        for top in range(0, height, side):
            for left in range(0, width, side):
                for y in range(top, top + side, PATCH):
                    for x in range(left, left + side, PATCH):
                        pair = [f[y : y + PATCH, x : x + PATCH] for f in (first, second)]
                        rows.append(np.stack(pair).transpose(3, 0, 1, 2).ravel())
    return np.array(rows)


def test_patches_span_two_frames_and_the_last_stands() -> None:
    images = Qwen2VLImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3)
    frames = [np.asarray(picture(seed, 84, 56)) for seed in (1, 2, 3)]
    found = FramesProcessor(images, "Qwen2VLVideoProcessor", QWEN2_VIDEO)([np.stack(frames)])
    expected = naive([frame / 127.5 - 1 for frame in [*frames, frames[-1]]])
    assert found["video_grid_thw"].tolist() == [[2, 4, 6]]
    np.testing.assert_allclose(found["pixel_values_videos"].numpy(), expected, atol=1e-5)


@pytest.mark.skipif(not at_least("transformers", MULTIMODAL["gemma4_e2b"].since), reason="no Gemma 4")
def test_frames_of_a_kind_are_images_of_their_own_and_of_fewer_tokens() -> None:
    images = transformers.Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=140)
    frames = [np.asarray(picture(seed, 120, 72)) for seed in (1, 2)]
    found = SeparateFrames(images, {"num_frames": 8})([np.stack(frames), np.stack(frames[1:])])
    rows = [
        frame[y : y + 4, x : x + 4].ravel() / 255 for frame in frames for y in range(0, 72, 4) for x in range(0, 120, 4)
    ]
    counts = [found[name] for name in ("num_frames_per_video", "num_soft_tokens_per_video")]
    assert [list(map(int, each)) for each in counts] == [[2, 1], [60, 60]]
    pixels, places = found["pixel_values_videos"], found["video_position_ids"]
    assert (pixels.shape, places.shape) == ((3, 70 * 9, 4 * 4 * 3), (3, 70 * 9, 2))
    np.testing.assert_allclose(pixels[:2, : 18 * 30].flatten(0, 1).numpy(), rows, atol=1e-6)
    assert places[1, : 18 * 30].tolist() == [[x, y] for y in range(18) for x in range(30)]
    assert places[:, 18 * 30 :].unique().tolist() == [-1]
    torch.testing.assert_close(pixels[2], pixels[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "count", "height", "width", "expected"),
    [
        ("Qwen2VLVideoProcessor", 4, 1080, 1920, (1008, 560)),
        ("Qwen2VLVideoProcessor", 9, 100, 300, (560, 196)),
        ("Qwen3VLVideoProcessor", 4, 1080, 1920, (588, 308)),
        ("Qwen3VLVideoProcessor", 5, 100, 20, (84, 364)),
    ],
)
def test_frames_are_fitted_as_transformers_fits_them(
    kind: str, count: int, height: int, width: int, expected: tuple[int, int]
) -> None:
    images = Qwen2VLImageProcessorPil()
    assert FramesProcessor(images, kind, {})._fitted(count, height, width) == expected


def test_videos_of_other_kinds_need_torchvision(tmp_path: Path) -> None:
    folder = save(tmp_path, "qwen2_vl")
    edit(folder / "processor_config.json", video_processor={"video_processor_type": "LlavaOnevisionVideoProcessor"})
    with pytest.raises(InvalidRequest, match=r"need torchvision.*send what its processor makes of one"):
        build(folder).admission.sequences(GenerateRequest(rid="x", text=PLACE, media=[clip(1, 2)], params=PARAMS))


def test_videos_whose_frames_are_images_in_a_prompt_are_told_apart(tmp_path: Path) -> None:
    served = Served("glm4v", tmp_path / "glm4v")
    text = served.family.video.replace("<|video|>", served.family.placeholder * 2)
    ids = served.reference.processor.tokenizer.encode(f"What happens in {text.replace('<|image|>', '<|image|>' * 6)}?")
    types = torch.tensor([2 * (token == served.place) for token in ids])[None]
    grid = torch.tensor([[2, 4, 6]])
    for seed in (1, 2):
        patches = torch.randn(48, 1176, generator=torch.Generator().manual_seed(seed))
        made = {"pixel_values_videos": patches, "video_grid_thw": grid, "mm_token_type_ids": types}
        item = Media(type="video", format="processor_output", tensors=tensors(made))
        expected = served.reference.generate({"input_ids": torch.tensor([ids]), **made})
        request = GenerateRequest(rid=f"v{seed}", input_ids=ids, media=[item], params=PARAMS)
        assert served.answers(request) == [expected], seed
