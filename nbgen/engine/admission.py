"""Turns a request into the sequences that serve it: tokens, budget, seeds, stop conditions.

Runs beside the engine's steps, in the thread that receives messages. A request for more than the model can do is
refused here, with the numbers.
"""

import copy
import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from nbgen.engine import unread_media
from nbgen.engine.adapters import Adapters
from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.answer_reading import AnswerReading, split
from nbgen.engine.answer_size import FLOAT32_BYTES, check_tensors, with_logprobs
from nbgen.engine.chat_rounds import shortened
from nbgen.engine.context_length import PromptTooLong, too_many_asked, too_many_for_cache, too_many_tokens
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.logit_processors import LogitProcessors
from nbgen.engine.media_prompt import MediaPrompt
from nbgen.engine.prefix_cache import Namespace
from nbgen.engine.processor import Processor
from nbgen.engine.sequence import Sequence
from nbgen.engine.stop_regex import StopRegexes
from nbgen.engine.token_ids import check_ids, translated
from nbgen.engine.tokenizer import Tokenizer
from nbgen.engine.word_tokens import bad_words, stop_words
from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest
from nbgen.frames import Request
from nbgen.logit_processor import may_be_code
from nbgen.messages import ChatMessage, EmbedRequest, GenerateRequest, LogprobOptions, Tensor
from nbgen.sampling_params import SamplingParams
from nbgen.tokenizer_messages import DetokenizeRequest, ParseRequest, TokenizerAnswer, TokenizeRequest

#: Tokens of the context that SGLang 0.5.23 leaves free.
RESERVED_TOKENS = 2
#: The token id that stands for an input embedding.
PLACEHOLDER = 1

#: Token ids, and the media if there are any.
Prompt = tuple[list[int], MediaPrompt | None]


class Admission:
    """Turns requests into sequences for one loaded model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelInfo,
        processors: LogitProcessors,
        adapters: Adapters,
        processor: Processor | None = None,
        media_refusal: str = unread_media.TEXT_ONLY,
    ) -> None:
        """`media_refusal` is the error text for media where no processor reads them."""
        self._processor = processor
        self._media_refusal = media_refusal
        self._adapters = adapters
        self._processors = processors
        self._tokenizer = tokenizer
        self._model = model
        self.resize(model.kv_tokens)

    def close(self) -> None:
        """End the process that decodes media files."""
        if self._processor is not None:
            self._processor.close()

    def resize(self, capacity: int) -> None:
        """Note that the KV cache now holds `capacity` tokens."""
        self._capacity = min(capacity, self._model.context_length)

    def would_wait(self, request: Request) -> bool:
        """Whether the request is a chat and the processor is busy with another chat, perhaps with its media."""
        is_chat = isinstance(request, GenerateRequest | TokenizeRequest) and request.messages is not None
        return is_chat and self._template is not None and self._template.lock.locked()

    def sequences(self, request: GenerateRequest) -> list[Sequence]:
        """One sequence for each of the request's samples. Raises InvalidRequest."""
        tried: dict[int, Prompt] = {}
        if request.drop_oldest:
            request = shortened(request, partial(self._holds, tried))
        prompt, media = tried.get(len(request.messages or ())) or self._made(request)
        reading = AnswerReading.of(
            request, prompt, self._tokenizer, self._answers if request.parts or request.thoughts else None
        )
        params = reading.params.with_defaults(self._model.sampling_defaults)
        if request.truncate and media is None:
            prompt = prompt[: max(1, self._room - len(request.prefix_ids) - 1)]
        self._check(request, [*prompt, *request.prefix_ids], params)
        for name in ("bad_ids", "stop_ids") if request.words else ():
            for word in getattr(request.words, name):
                self._check_ids(word, name)
        self._check_logprobs(request.logprobs, len(prompt))
        budget = self._budget(len(prompt) + len(request.prefix_ids), params)
        params = with_logprobs(request.logprobs, params, len(prompt), budget, request.batch)
        check_tensors(request.tensors, self._model, len(prompt), budget, params.n, request.batch)
        if request.logit_processor is not None:
            self._processors.load(request.logit_processor)
        return self._samples(request, prompt, params, media, reading)

    def translate(self, request: TokenizeRequest | DetokenizeRequest | ParseRequest | EmbedRequest) -> TokenizerAnswer:
        """Token ids of a text or chat, the text of token ids, or the parts of an answer. Raises InvalidRequest."""
        if isinstance(request, EmbedRequest):
            raise InvalidRequest(
                f"{self._model.name} does not appear to be an embedding model: it writes text; load an embedding "
                'model, such as one of sentence-transformers, or take its hidden states by pooling="mean" or "last"'
            )
        if isinstance(request, ParseRequest):
            return TokenizerAnswer(rid=request.rid, parts=split(request, self._answers))
        if isinstance(request, DetokenizeRequest) or request.messages is None:
            return translated(request, self._tokenizer, self._model.vocab_size)
        opens, continues = request.add_generation_prompt, request.continue_final
        ids = self._chat(request.messages, request.tools, request.template_options, opens, continues)
        return TokenizerAnswer(rid=request.rid, token_ids=[ids])

    def _samples(
        self,
        request: GenerateRequest,
        prompt: list[int],
        params: SamplingParams,
        media: MediaPrompt | None,
        reading: AnswerReading,
    ) -> list[Sequence]:
        """One sequence a sample; everything that they have in common is computed once."""
        decode, adapter = self._decoder(params), self._adapters.find(request.adapter, request.rid)
        skipped = self._tokenizer.skipped if params.skip_special_tokens else {}
        detokenizer = Detokenizer(decode, self._tokenizer.is_byte, prompt, skipped)
        prompt_text = detokenizer.before(prompt) if request.echo else None
        turn_ends = self.turn_ends if params.grammar or (request.messages and request.parts) else ()
        stop_ids = self._tokenizer.eos_ids.union(params.stop_token_ids, turn_ends)
        stops, in_order = stop_words(request.words, self._tokenizer), bool(request.words and request.words.in_order)
        stop_strings = partial(StopStrings, (*params.stop, *stops), keep_match=params.no_stop_trim, in_order=in_order)
        regexes = StopRegexes(params.stop_regex) if params.stop_regex else None
        seed = int.from_bytes(os.urandom(7)) if params.sampling_seed is None else params.sampling_seed
        sequence = partial(
            Sequence,
            rid=request.rid,
            prompt_ids=[*prompt, *request.prefix_ids],
            params=params,
            budget=self._budget(len(prompt) + len(request.prefix_ids), params),
            stop_token_ids=stop_ids,
            unsaid=reading.unsaid - stop_ids,
            left_out=skipped,
            logit_processor=request.logit_processor,
            namespace=Namespace(request.namespace, adapter.version if adapter else 0),
            adapter=adapter,
            prefix_text="".join(map(detokenizer.append, request.prefix_ids)),  # before `detokenizer` is copied
            num_given=len(request.prefix_ids),
            logprobs=request.logprobs,
            tensors=request.tensors,
            num_routed=(request.tensors and request.tensors.routed_experts) or 0,
            bad_words=bad_words(request.words, self._tokenizer),
            embeds=_cut(request.input_embeds, len(prompt)),
            media=media,
            prompt_text=prompt_text,
            streamed=request.streamed,
            shows_prompt_ids=request.prompt_ids,
            priority=request.priority,
            group=request.group or request.rid,
        )
        return [
            sequence(
                index=index,
                seed=_signed(seed + index),
                detokenizer=detokenizer.copy(),
                stop_strings=stop_strings(regexes=regexes and regexes.again()),
                custom_params=_told(request.logit_processor, params.custom_params),
                parser=reading.parser and reading.parser(),
            )
            for index in range(params.n)
        ]

    def _decoder(self, params: SamplingParams) -> Callable[[list[int]], str]:
        return self._tokenizer.decoder(
            skip_special_tokens=params.skip_special_tokens, spaces_between=params.spaces_between_special_tokens
        )

    def _media(self, request: GenerateRequest) -> MediaPrompt | None:
        """The prompt of a request that has media; None if it has none. Raises InvalidRequest."""
        contents = [message.content for message in request.messages or [] if isinstance(message.content, list)]
        if not request.media and all(part.type == "text" for parts in contents for part in parts):
            return None
        if self._processor is None:
            raise InvalidRequest(self._media_refusal, field="image_data" if request.media else "messages")
        if request.input_embeds is not None:
            raise InvalidRequest("media need a prompt of text or ids, not input_embeds", field="image_data")
        self._tokenizer.check_chat(request.messages or [])
        return self._processor.prompt(request, self._tokenizer.encode)

    @property
    def _answers(self) -> AnswerFormat | None:
        """How the model writes reasoning and tool calls, according to its chat template."""
        return (self._template or self._tokenizer).answers

    @cached_property
    def turn_ends(self) -> frozenset[int]:
        """The special token with which the template ends an answer, if any, even if the model's settings lack it."""
        found = self._tokenizer.special_at((self._template or self._tokenizer).turn_end)
        answers, text = self._answers, self._tokenizer.token_text
        return frozenset(token for token in found if answers is None or not answers.mentions(text(token)))

    @property
    def _template(self) -> Processor | None:
        """The processor if chats use its template; None if they use the tokenizer's."""
        return self._processor if self._processor is not None and self._processor.has_chat_template else None

    def _chat(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]],
        options: Mapping[str, Any],
        opens: bool,
        continues: bool,
    ) -> list[int]:
        """Token ids of a chat without media. Raises InvalidRequest."""
        if self._template is not None:
            self._tokenizer.check_chat(messages)
            own = {"tools": tools or None, "add_generation_prompt": opens, "continue_final_message": continues}
            return self._template.encode_chat(messages, options, **own)
        return self._tokenizer.encode_chat(
            messages, opens_answer=opens, continues_last=continues, tools=tools, options=options
        )

    def _made(self, request: GenerateRequest) -> Prompt:
        media = self._media(request)
        return (self._prompt(request) if media is None else media.ids), media

    def _prompt(self, request: GenerateRequest) -> list[int]:
        if request.messages is not None:
            tools, continues = request.tools.tools if request.tools else [], request.continue_final
            return self._chat(request.messages, tools, request.template_options, not continues, continues)
        if request.text is not None:
            return self._tokenizer.encode(request.text, cut=request.truncate, field="prompt")
        if request.input_embeds is not None:
            self._check_embeds(request.input_embeds)
            return [PLACEHOLDER] * request.input_embeds.shape[0]
        return request.input_ids or []

    def _check(self, request: GenerateRequest, prompt: list[int], params: SamplingParams) -> None:
        if not prompt:
            raise InvalidRequest("the prompt has no tokens; input_ids cannot be empty", field="input_ids")
        field = _prompt_field(request)
        self._check_ids(request.prefix_ids, "prefix_ids")
        check_ids(prompt, field, self._model.vocab_size, tokenized=field in ("messages", "prompt"))
        self._check_ids(params.logit_bias, "logit_bias")
        context, length = self._model.context_length, len(prompt)
        if length >= context:
            raise too_many_tokens(length, context, field)
        if length >= self._capacity:
            raise too_many_for_cache(length, self._capacity, field)
        asked, fits = params.max_new_tokens, request.fit or request.truncate
        if isinstance(asked, int) and not fits and length + asked > context:
            raise too_many_asked(length, asked, context)

    def _check_logprobs(self, options: LogprobOptions | None, length: int) -> None:
        if options is None:
            return
        self._check_ids(options.token_ids, "token_ids_logprob")
        if options.start is not None and options.start > length:
            raise InvalidRequest(
                f"logprob_start_len is {options.start}; the prompt has {length} tokens", field="logprob_start_len"
            )

    def _check_embeds(self, embeds: Tensor) -> None:
        width = self._model.embed_size
        if not width:
            raise InvalidRequest("this model takes no embeddings: send text or input_ids", field="input_embeds")
        if embeds.shape[-1] != width:
            raise InvalidRequest(
                f"input_embeds has rows of {embeds.shape[-1]} numbers; the embeddings of this model have {width}",
                field="input_embeds",
            )

    def _check_ids(self, ids: list[int] | dict[int, float], field: str) -> None:
        check_ids(ids, field, self._model.vocab_size)

    def _holds(self, tried: dict[int, Prompt], request: GenerateRequest) -> bool:
        """Whether the prompt leaves room for its answer: `max_new_tokens`, or a quarter of `_room` if none is given.

        A `max_new_tokens` that may be cut need not have more than that quarter. `tried` keeps the last prompt that
        does, by its number of messages, so that its media are decoded once.
        """
        asked, quarter = request.params.max_new_tokens, self._room // 4
        budget = quarter if not isinstance(asked, int) else min(asked, quarter) if request.fit else asked
        try:
            made = self._made(request)
        except PromptTooLong:
            return False
        if fits := len(made[0]) + budget <= self._room:
            tried.clear()
            tried[len(request.messages or ())] = made
        return fits

    @property
    def _room(self) -> int:
        """Most tokens that a sequence may have."""
        return min(self._model.context_length - RESERVED_TOKENS, self._capacity)

    def _budget(self, length: int, params: SamplingParams) -> int:
        room = max(0, self._room - length)
        return room if params.token_limit is None else min(params.token_limit, room)


def _prompt_field(request: GenerateRequest) -> str:
    """The request's field that held the prompt."""
    if request.messages is not None:
        return "messages"
    return "prompt" if request.text is not None else "input_ids"


def _cut(embeds: Tensor | None, length: int) -> Tensor | None:
    """The first `length` rows: those beyond a truncated prompt would take the positions of the answer."""
    if embeds is None or embeds.shape[0] <= length:
        return embeds
    width = embeds.shape[1]
    data = embeds.data[: length * width * FLOAT32_BYTES]
    return Tensor(name=embeds.name, datatype=embeds.datatype, shape=(length, width), data=data)


def _told(processor: str | None, custom_params: Any) -> Any:
    """A sample's own copy of its processor's parameters: deep for client code, which may change nested values."""
    if processor is None:
        return None
    return copy.deepcopy(custom_params) if may_be_code(processor) else copy.copy(custom_params)


def _signed(seed: int) -> int:
    """The seed as a signed 64-bit integer; beyond the largest it wraps around."""
    return (seed + 2**63) % 2**64 - 2**63
