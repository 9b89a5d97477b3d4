"""Converts between text and token ids: encoding, chat template, decoding, end tokens. Knows nothing of sequences."""

import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nbgen.engine import template_fault, template_options
from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.context_length import too_many_bytes
from nbgen.engine.template_messages import adapted, template_message, with_one_system_turn, with_tools
from nbgen.engine.template_turns import TemplateTurns
from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage

#: The most bytes of text per token of context that are worth tokenizing; more can never fit.
MAX_BYTES_PER_TOKEN = 16
#: The most characters of a chat's thoughts and arguments. Those of earlier turns may be more than a context holds,
#: since a template may leave them out.
MAX_BESIDE_TEXT = 4 * 2**20
#: What a generative reranker says of a document.
VERDICTS = ("yes", "no")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A model's tokenizer with what generation needs of it."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, eos_ids: Set[int], context_length: int, verdicts: Sequence[int] = ()
    ) -> None:
        """`verdicts` are a reranker's tokens for yes and for no, if its files name them."""
        self._tokenizer: Any = tokenizer  # its methods return a text, a list or a dictionary, depending on arguments
        self._context, self._verdicts = context_length, list(verdicts)
        self._limit = context_length * MAX_BYTES_PER_TOKEN
        self._byte_ids = {i for token, i in tokenizer.get_vocab().items() if _is_byte(token)}
        own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.eos_ids = frozenset(eos_ids).union(own)

    @property
    def pretrained(self) -> PreTrainedTokenizerBase:
        """transformers' own tokenizer, for libraries that read vocabularies."""
        return self._tokenizer

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    @property
    def verdicts(self) -> list[int]:
        """A reranker's tokens for yes and for no: those that its files name, or words that its chat template names."""
        template = self._tokenizer.chat_template
        if template and self._verdicts:
            return self._verdicts
        if not isinstance(template, str) or any(f'"{word}"' not in template for word in VERDICTS):
            return []
        ids = [self._tokenizer.convert_tokens_to_ids(word) for word in VERDICTS]
        return [] if self._tokenizer.unk_token_id in ids or None in ids else ids

    @property
    def about(self) -> dict[str, str | None]:
        """Facts for clients that tokenize and render chats themselves: its class, chat template and special tokens."""
        found = {name: getattr(self._tokenizer, name, None) for name in ("chat_template", *SPECIAL_TOKENS)}
        told = {name: value if isinstance(value, str) else None for name, value in found.items()}
        return {"tokenizer_class": type(self._tokenizer).__name__, **told}

    def encode(
        self, text: str, *, add_special_tokens: bool = True, cut: bool = False, field: str | None = None
    ) -> list[int]:
        """Ids of plain text, with the special tokens that the tokenizer puts around it unless told otherwise.

        Text that is longer than any context is refused, naming `field`, or cut off if `cut`.
        """
        if cut:
            text = text.encode("utf-8", "replace")[: self._limit].decode("utf-8", "ignore")
        self._check_length(text, field)
        # The arguments of a call may hold half a surrogate pair: write it as JSON does.
        whole = text.encode("utf-8", "backslashreplace").decode()
        return self._ids(whole, add_special_tokens)

    def encode_chat(
        self,
        messages: list[ChatMessage],
        *,
        opens_answer: bool = True,
        continues_last: bool = False,
        tools: list[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a chat, rendered by the model's template. `options` are values of the template's own variables.

        Raises InvalidRequest if there is no template or it refuses the chat.
        """
        if not self.has_chat_template:
            raise InvalidRequest(template_options.NO_TEMPLATE, field="messages")
        template_options.check(options or {})
        self.check_chat(messages)
        answers = self.answers if any(m.tool_calls or m.reasoning or m.tool_call_id for m in messages) else None
        said = with_one_system_turn(messages, self._render)
        try:
            text = self._render(
                [template_message(m, m.text, answers) for m in adapted(said, answers)],
                tools or [],
                opens_answer,
                continue_final_message=continues_last,
                **(options or {}),
            )
        except template_fault.ERRORS as error:
            bad_tool = template_fault.bad_tool(tools, self._render)
            raise template_fault.refusal(error, self._tokenizer.chat_template, messages, bad_tool) from None
        return self.encode(text, add_special_tokens=False, field="messages")

    def encode_pair(self, messages: list[ChatMessage]) -> tuple[list[int], list[int]]:
        """Ids of a query and a document, and for each id which of the two it is from, if the tokenizer tells.

        A generative reranker's chat template renders them, with the instruction; else they are joined as they are.
        """
        self.check_chat(messages)
        if self.verdicts:
            return self.encode_chat(messages), []
        if len(messages) > 2:
            raise InvalidRequest("this model reads no instruct: leave it out", field="instruct")
        made = self._tokenizer(messages[0].text, messages[1].text, verbose=False)
        return made["input_ids"], made.get("token_type_ids", [])

    @cached_property
    def answers(self) -> AnswerFormat | None:
        """How the model writes thoughts and calls of tools, as far as its template shows."""
        return AnswerFormat.of_model(self._tokenizer, self._render, self.ends)

    @property
    def ends(self) -> list[str]:
        """The texts of the end tokens that the tokenizer knows."""
        return [text for i in self.eos_ids if (text := self.token_text(i))]

    @cached_property
    def turn_end(self) -> str:
        """What the chat template writes after an answer; "" without one."""
        return TemplateTurns(self._render).end if self.has_chat_template else ""

    def special_at(self, text: str) -> frozenset[int]:
        """The special tokens that the text begins with, if any."""
        added = self._tokenizer.added_tokens_decoder.items()
        return frozenset(i for i, token in added if token.special and text.startswith(str(token)))

    def _render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], opens: bool, /, **options: Any
    ) -> str:
        template = self._tokenizer.chat_template
        options = template_options.of_tools(template, tools) | options
        if tools and template_options.in_system(template):
            messages = with_tools(messages, tools)
        return self._tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=opens, **options
        )

    def _ids(self, text: str, special: bool) -> list[int]:
        if _encodes_plainly(self._tokenizer):  # without offsets: half the time, and no wait to free them
            return self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return self._tokenizer.encode(text, add_special_tokens=special)

    def decoder(self, *, skip_special_tokens: bool, spaces_between: bool) -> Callable[[list[int]], str]:
        """A function from ids to text."""
        if _decodes_plainly(self._tokenizer):
            return partial(self._tokenizer.backend_tokenizer.decode, skip_special_tokens=skip_special_tokens)

        def decode(ids: list[int]) -> str:
            return self._tokenizer.decode(
                ids,
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=spaces_between,
                clean_up_tokenization_spaces=False,
            )

        return decode

    def texts(self, lists: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        """The text of each list of ids."""
        decode = self.decoder(skip_special_tokens=skip_special_tokens, spaces_between=True)
        return [decode(ids) for ids in lists]

    @cached_property
    def skipped(self) -> dict[int, str]:
        """The special tokens that a decoder leaves out with `skip_special_tokens`, with their texts."""
        decode = self.decoder(skip_special_tokens=True, spaces_between=True)
        added = {i for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        tokens = added.union(self._tokenizer.all_special_ids)
        return {token: self.token_text(token) for token in tokens if not decode([token])}

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, also of a special one; "" if the tokenizer does not know it."""
        try:
            return self.text([token_id])
        except Exception:  # some models have more tokens than their tokenizer, whose code may raise anything for them
            return ""

    def token_bytes(self, token_id: int) -> bytes | None:
        """The token's own bytes, which may be part of a character; None if the vocabulary does not tell them."""
        piece: Any = self._tokenizer.convert_ids_to_tokens(token_id)
        if self.is_byte(token_id):
            return bytes.fromhex(piece[3:5])
        try:
            found = bytes(BYTE_LETTERS[letter] for letter in piece)
        except KeyError:
            return None
        return found if found.decode("utf-8", "replace") == self.token_text(token_id) else None

    def text(self, ids: list[int]) -> str:
        """The text of tokens, special ones included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is one raw byte of a byte-fallback vocabulary, as `<0x0A>`."""
        return token_id in self._byte_ids

    def check_chat(self, messages: list[ChatMessage]) -> None:
        """Raise InvalidRequest for a chat that is too long, before a template renders it."""
        self._check_length("".join(m.text for m in messages), "messages")
        beside = sum(len(m.reasoning) + sum(len(call.arguments) for call in m.tool_calls) for m in messages)
        if beside > MAX_BESIDE_TEXT:
            words = f"the thoughts and arguments in messages have {beside} characters; at most {MAX_BESIDE_TEXT}"
            raise InvalidRequest(words, field="messages")

    def _check_length(self, text: str, field: str | None) -> None:
        if (size := len(text.encode("utf-8", "replace"))) > self._limit:
            raise too_many_bytes(size, self._limit, self._context, field)


def _decodes_plainly(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether transformers leaves decoding to the tokenizers library, so that this can be called directly."""
    kind = type(tokenizer)
    return isinstance(tokenizer, PreTrainedTokenizerFast) and (kind.decode, kind._decode) == (
        PreTrainedTokenizerFast.decode,
        PreTrainedTokenizerFast._decode,
    )


def _encodes_plainly(tokenizer: Any) -> bool:
    """The same of encoding. Not if the library is set to truncate or pad, which transformers would undo."""
    kind = type(tokenizer)
    plain = PreTrainedTokenizerFast
    if not isinstance(tokenizer, plain) or (kind.encode, kind._encode_plus) != (plain.encode, plain._encode_plus):
        return False
    backend = tokenizer.backend_tokenizer
    keeps_special = backend.encode_special_tokens == tokenizer.split_special_tokens
    return keeps_special and backend.truncation is None and backend.padding is None


def _is_byte(token: str) -> bool:
    return len(token) == 6 and re.fullmatch("<0x[0-9A-Fa-f]{2}>", token) is not None


def _byte_letters() -> dict[str, int]:
    """The letters of byte-level vocabularies and their bytes: printable ones are themselves, others from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(0x100)).difference(shown))
    return {chr(byte): byte for byte in shown} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_LETTERS = _byte_letters()
