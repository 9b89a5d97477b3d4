"""Makes prompts with images, sounds and videos, by the model's own processor. Runs where requests are admitted.

Of the model it knows only which placeholder ids stand for which type; the encoder runs the towers on the tensors.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import signature
from typing import Any

import jinja2
import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from PIL import Image
from transformers.processing_utils import ProcessorMixin

from nbgen.bytes_elements import unpack_bytes
from nbgen.engine import given_media, media_options, template_fault, template_options, unread_media, video, video_clip
from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.context_length import PromptTooLong
from nbgen.engine.image import PROMPT_PIXELS
from nbgen.engine.media_decoder import MediaDecoder
from nbgen.engine.media_prompt import MediaPrompt
from nbgen.engine.template_messages import adapted, template_message, with_one_system_turn
from nbgen.engine.template_turns import TemplateTurns
from nbgen.engine.video_clip import VideoClip
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_MEDIA
from nbgen.messages import ChatMessage, GenerateRequest, Media

#: Outputs of a processor that are no inputs of the model's towers.
OWN = {"input_ids", "attention_mask"}
#: By type of media, the argument of a processor's call.
ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
DEFAULT_RATE = 16_000
#: Whether this transformers can read special tokens in a user's words as plain text, which only new versions can.
READS_SPECIAL_TOKENS_AS_TEXT = "sanitize_control_tokens" in signature(ProcessorMixin.apply_chat_template).parameters
#: What a processor raises for inputs that it cannot take; torchvision's do what torch does.
REFUSALS = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RuntimeError, StrictDataclassError)
#: A text that is rendered to see where a template puts the text of a message.
MARK = "nbgen mark"

Made = Mapping[str, Any]


class Processor:
    """A model's processor. `types` are the types of media that it can make from files; a video's may be its frames."""

    def __init__(
        self, processor: ProcessorMixin, types: list[str], placeholders: Mapping[int, str], ends: Sequence[str] = ()
    ) -> None:
        """`placeholders` are the ids that the model replaces by media, with their types; `ends` are its end tokens."""
        self._ends = ends
        self._processor: Any = processor
        self._decoder = MediaDecoder()
        #: Only one thread at a time may use its tokenizer. Files are decoded without this lock.
        self.lock = threading.Lock()
        self._types = types
        self._placeholders = placeholders
        self._lists_parts = self.has_chat_template and _lists_parts(processor)
        self._places = {kind: self._place(kind) for kind in types}

    def close(self) -> None:
        """End the process that decodes media."""
        self._decoder.close()

    @property
    def media(self) -> list[str]:
        """All types of media that the model takes, some of them perhaps only as tensors."""
        return media_types(self._processor, self._placeholders)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._processor.chat_template)

    @cached_property
    def answers(self) -> AnswerFormat | None:
        """How the model writes thoughts and calls of tools, as far as its template shows."""
        return AnswerFormat.of_model(self._processor, self._render, self._ends)

    @cached_property
    def turn_end(self) -> str:
        """What the chat template writes after an answer."""
        return TemplateTurns(self._render).end

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], opens: bool) -> str:
        turns = [m | {"content": [{"type": "text", "text": m["content"]}]} if m.get("content") else m for m in messages]
        with self.lock:
            return self._processor.apply_chat_template(
                turns if self._lists_parts else messages, tools=tools or None, add_generation_prompt=opens
            )

    def encode_chat(self, messages: list[ChatMessage], options: Mapping[str, Any], **own: Any) -> list[int]:
        """Ids of a chat without media; `options` are a client's, `own` are transformers'. Raises InvalidRequest."""
        return self._chat(messages, [], options, **own)["input_ids"][0].tolist()

    def prompt(self, request: GenerateRequest, encode: Callable[[str], list[int]]) -> MediaPrompt:
        """The prompt of a request with media; `encode` makes ids of plain text. Raises InvalidRequest."""
        media = request.media
        self._check(media)
        if any(each.tensors for each in media):
            return given_media.prompt(request, encode, self._placeholders)
        if request.messages is not None:
            made = self._chat(
                request.messages,
                media,
                request.template_options,
                tools=(request.tools and request.tools.tools) or None,
                add_generation_prompt=not request.continue_final,
                continue_final_message=request.continue_final,
            )
            return self._of(made, media)
        if request.input_ids is not None:
            return self._of_ids(request.input_ids, media)
        return self._of(self._text(request.text or "", media), media)

    def _check(self, media: list[Media]) -> None:
        if len(media) > MAX_MEDIA:
            raise PromptTooLong(f"the prompt has {len(media)} media; at most {MAX_MEDIA}", field="image_data")
        for each in media:
            if each.type not in self.media:
                takes = " and ".join(self.media)
                raise InvalidRequest(f"this model takes no {each.type}; it takes {takes}", field=f"{each.type}_data")
            if not each.tensors and each.type not in self._types:
                raise InvalidRequest(unread_media.why(each.type), field=f"{each.type}_data")
            if (each.type, each.format) == ("video", "raw") and not video.available():
                raise InvalidRequest(unread_media.NO_VIDEO_FILES, field="video_data")

    def _of(self, made: Made, media: list[Media], ids: list[int] | None = None) -> MediaPrompt:
        ids = made["input_ids"][0].tolist() if ids is None else ids
        inputs = {name: value for name, value in made.items() if name not in OWN and isinstance(value, torch.Tensor)}
        return MediaPrompt.of(ids, media, self._placeholders.get, inputs)

    def _text(self, text: str, media: list[Media], **options: Any) -> Made:
        """The processor's output for text with one placeholder for each medium. Without any, media come first."""
        for kind in reversed(self._types):
            token, given = self._token(kind), len(_of_type(media, kind))
            if token is not None and token not in text:
                text = self._places[kind] * given + text
            if token is not None and text.count(token) != given:
                raise InvalidRequest(
                    f"the text has {text.count(token)} times {token}, which stands for one {kind} each; "
                    f"{given} came with it",
                    field=f"{kind}_data",
                )
        found = self._decoded(media)
        options |= {ARGUMENTS[kind]: [*map(video_clip.plain, items)] for kind, items in found.items() if items}
        options |= self._options(media, found)
        return self._run(lambda: self._processor(text=[text], return_tensors="pt", **options))

    def _of_ids(self, ids: list[int], media: list[Media]) -> MediaPrompt:
        """The prompt of ids with one placeholder for each medium, or with all that it expands to: these stay as is."""
        tokenizer, tokens = self._processor.tokenizer, [self._token(each.type) or "" for each in media]
        single = {tokenizer.convert_tokens_to_ids(token) for token in tokens}
        if sum(i in single for i in ids) == len(media) >= sum(i in self._placeholders for i in ids):
            text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            return self._of(self._text(text, media, add_special_tokens=False), media)
        made = self._text("".join(tokens), media, add_special_tokens=False)
        expanded, given = (Counter(map(self._placeholders.get, each)) for each in (made["input_ids"][0].tolist(), ids))
        for kind in self._types:
            if expanded[kind] != given[kind]:
                raise InvalidRequest(
                    f"input_ids has {given[kind]} placeholders of type {kind}; what came takes {expanded[kind]} or one "
                    "for each",
                    field="input_ids",
                )
        whole = {name: value for name, value in made.items() if not name.endswith("token_type_ids")}
        if "mm_token_type_ids" in made:
            whole["mm_token_type_ids"] = torch.tensor(self._processor.create_mm_token_type_ids([ids]))
        return self._of(whole, media, ids)

    def _chat(self, messages: list[ChatMessage], media: list[Media], options: Mapping[str, Any], **own: Any) -> Made:
        """The processor's output for a chat. Only message parts are media; whatever a user wrote is text."""
        if not self.has_chat_template:
            raise InvalidRequest(template_options.NO_TEMPLATE, field="messages")
        call = template_options.read_by(self._processor.chat_template, options) | own
        call |= {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
        found = self._decoded(media)
        conversation, kwargs = self._conversation(messages, media, found), self._options(media, found)

        def run(**more: Any) -> Made:
            with self.lock:
                return self._processor.apply_chat_template(conversation, processor_kwargs=dict(kwargs), **call, **more)

        try:
            if READS_SPECIAL_TOKENS_AS_TEXT:
                return run(sanitize_control_tokens=True)
        except REFUSALS:
            pass  # not every processor can
        except jinja2.TemplateError as error:
            raise self._refusal(error, messages, own["tools"]) from None
        self._refuse_placeholders(messages)
        try:
            return run()
        except (jinja2.TemplateError, *REFUSALS) as error:
            raise self._refusal(error, messages, own["tools"]) from None

    def _refusal(self, error: Exception, messages: list[ChatMessage], tools: Any) -> InvalidRequest:
        template, bad_tool = self._processor.chat_template, template_fault.bad_tool(tools, self._render)
        return template_fault.refusal(error, template, messages, bad_tool, "chat template or processor")

    def _conversation(
        self, messages: list[ChatMessage], media: list[Media], found: Mapping[str, list[Any]]
    ) -> list[dict[str, Any]]:
        """The messages as a template reads them, with the media of `found` in their parts."""
        parts = [part for m in messages if isinstance(m.content, list) for part in m.content if part.type != "text"]
        given, came = ([each.type for each in some] for some in (parts, media))
        if given != came:
            told = f"the messages have parts of the types {given}, and the media that came are {came}"
            raise InvalidRequest(f"{told}: they must be the same", field="messages")
        each = {kind: map(video_clip.plain, items) for kind, items in found.items()}
        said = adapted(with_one_system_turn(messages, self._render), self.answers)
        return [template_message(m, self._content(m, each), self.answers) for m in said]

    def _content(self, message: ChatMessage, found: Mapping[str, Any]) -> str | list[dict[str, Any]]:
        if isinstance(message.content, str):
            return [{"type": "text", "text": message.content}] if self._lists_parts else message.content
        return [
            {"type": "text", "text": part.text}
            if part.type == "text"
            else {"type": part.type, part.type: next(found[part.type])}
            for part in message.content
        ]

    def _refuse_placeholders(self, messages: list[ChatMessage]) -> None:
        for token in filter(None, map(self._token, self._types)):
            if any(token in m.text for m in messages):
                raise InvalidRequest(f"a message holds {token}, which this model reads as a place for media")

    def _run(self, call: Callable[[], Made]) -> Made:
        try:
            with self.lock:
                return call()
        except REFUSALS:
            raise InvalidRequest(
                "the model's processor refuses this prompt, its media or their options", field="image_data"
            ) from None

    def _token(self, kind: str) -> str | None:
        """The text that stands for one medium."""
        return getattr(self._processor, f"{kind}_token", None)

    def _place(self, kind: str) -> str:
        """What the chat template writes in place of a medium: its token, and perhaps more around it."""
        token, mark = self._token(kind) or "", {"type": "text", "text": MARK}
        if not self._lists_parts:
            return token
        try:
            plain, seeing = (
                self._processor.apply_chat_template([{"role": "user", "content": content}])
                for content in ([mark], [{"type": kind}, mark])
            )
        except Exception:  # a template may raise anything
            return token
        before, _, after = plain.partition(MARK)
        found = seeing.removeprefix(before).removesuffix(MARK + after)
        return found if found.count(token) == 1 and len(found) == len(seeing) - len(plain) else token

    def _decoded(self, media: list[Media]) -> dict[str, list[Any]]:
        """The decoded media of each type: images, sound samples, video clips."""
        return {kind: self._all_decoded(_of_type(media, kind), kind) for kind in self._types}

    def _all_decoded(self, found: list[Media], kind: str) -> list[Any]:
        if kind == "audio":
            return [self._decoder.sound(each.data, self._rate, f"audio {i}") for i, each in enumerate(found, 1)]
        if kind == "video":
            return self._clips(found)
        return self._images([each.data for each in found], "image")

    def _clips(self, videos: list[Media]) -> list[VideoClip]:
        clips: list[VideoClip] = []
        for index, medium in enumerate(videos, 1):
            video_clip.check(medium)
            if medium.format == "raw":
                sampling = video_clip.sampling(self._processor.video_processor, medium.options, len(videos))
                clips.append(VideoClip.of_file(self._decoder.video(medium.data, sampling, f"video {index}")))
            else:
                clips.append(VideoClip.of_images(self._frames(medium, f"video {index}"), medium.options))
            if (pixels := sum(clip.frames.size for clip in clips) // 3) > PROMPT_PIXELS:
                raise InvalidRequest(
                    f"the frames of videos 1 to {index} have {pixels / 10**6:.0f} megapixels together; those of a "
                    f"prompt have at most {PROMPT_PIXELS // 10**6}",
                    field="video_data",
                )
        return clips

    def _frames(self, medium: Media, place: str) -> np.ndarray:
        """The frames of a video that was sent as images: `[time, height, width, 3]`."""
        images = self._images(unpack_bytes(medium.data), f"frame of {place}: number")
        if len(sizes := {image.size for image in images}) > 1:
            raise InvalidRequest(
                f"the frames of {place} have {len(sizes)} sizes; they must have one", field="video_data"
            )
        return np.stack([np.asarray(image) for image in images])

    def _images(self, files: Sequence[bytes | memoryview], place: str) -> list[Image.Image]:
        images, pixels = [], 0
        for index, data in enumerate(files, 1):
            images.append(image := self._decoder.image(memoryview(data), f"{place} {index}"))
            pixels += image.width * image.height
            if pixels > PROMPT_PIXELS:
                raise InvalidRequest(
                    f"images 1 to {index} have {pixels / 10**6:.0f} megapixels together; those of a prompt have at "
                    f"most {PROMPT_PIXELS // 10**6}",
                    field="image_data",
                )
        return images

    @property
    def _rate(self) -> int:
        return int(getattr(self._processor._audio_processor, "sampling_rate", DEFAULT_RATE))

    def _options(self, media: list[Media], decoded: Mapping[str, list[Any]]) -> dict[str, Any]:
        """The processor's keyword arguments from the media's options, which hold for all media of a prompt."""
        options: dict[str, Any] = {}
        for kind in self._types:
            processor: Any = getattr(self._processor, f"{kind}_processor", None)
            given = media_options.of(found := _of_type(media, kind), kind, processor)
            if found and kind == "audio":
                options["audio_kwargs"] = {"sampling_rate": self._rate, **given}
            elif found and kind == "video":
                options["videos_kwargs"] = video_clip.arguments(decoded[kind])
            elif given:
                media_options.check_images(given, processor)
                options["images_kwargs"] = given
        return options


def media_types(processor: Any, placeholders: Mapping[int, str]) -> list[str]:
    """All types of media that a model takes. A processor may write a video as images."""
    found = set(placeholders.values())
    as_images = "image" in found and all(getattr(processor, f"video_{of}", None) for of in ("token", "processor"))
    return sorted(found | {"video"} if as_images else found)


def _of_type(media: list[Media], kind: str) -> list[Media]:
    return [each for each in media if each.type == kind]


def _lists_parts(processor: Any) -> bool:
    """Whether the chat template reads text as a list of parts."""
    try:
        text = processor.apply_chat_template([{"role": "user", "content": [{"type": "text", "text": MARK}]}])
    except Exception:  # a template may raise anything
        return True
    return MARK in text and "'type'" not in text
