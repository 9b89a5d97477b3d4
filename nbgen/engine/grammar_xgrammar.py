"""Grammars through xgrammar (Dong et al. 2024): the default back end. Knows no sequences and no scores."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xgrammar

from nbgen.engine.grammar import MAX_WHITESPACE, Grammar, GrammarError, spaced
from nbgen.engine.grammar_limits import ANY_JSON, schemas
from nbgen.engine.json_regex import ESCAPED, by_bytes, text_of_string, whole_answer
from nbgen.engine.marked_rules import MOST_REGEXES, is_marked, mark_of_regex, with_rules
from nbgen.engine.schema_dates import with_dates
from nbgen.engine.structural_tag import OF_SCHEMAS, current, parts
from nbgen.engine.xgrammar_schema import enforceable
from nbgen.sampling_params import SPACED

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

#: A grammar that compiles within so many seconds of processor time is compiled again in the engine. Sending the result
#: takes longer, because it repeats itself for each rule: minutes for some that compile in half a second.
QUICK = 2.5
#: The most threads that compile at once in the worker process.
MOST_THREADS = 4
#: A repeat count of a hundred or more.
GREAT = re.compile(r"\{(\d+,)?\d{3,},?\}")
#: Styles of a structural tag's JSON that write strings as text at every level; others do so in an object's properties.
AS_TEXT = ("gemma",)

NO_RULES = "it has no rule like `root ::= ...`: for Lark's grammars start the server with --grammar-backend=llguidance"


class XGrammarBackend:
    """Compiles and matches for one vocabulary; without end tokens, an answer ends where its grammar does."""

    knows_lenient = False

    def __init__(self, tokenizer: xgrammar.TokenizerInfo, eos_ids: list[int], threads: int = 1) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        vocabulary = tokenizer.decoded_vocab if eos_ids else []
        self._ends = {i: bytes(vocabulary[i]).decode("utf-8", "replace") for i in eos_ids if i < len(vocabulary)}
        self._compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=threads, cache_enabled=False)

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Set[int]) -> XGrammarBackend:
        """For a model's tokenizer. Rows of the vocabulary that no token has are never allowed."""
        size = max(vocab_size, max(tokenizer.get_vocab().values()) + 1)
        ids = sorted(eos_ids)
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=ids or None)
        return cls(info, ids)

    @classmethod
    def from_vocabulary(cls, vocabulary: bytes) -> XGrammarBackend:
        info, eos_ids = msgspec.msgpack.decode(vocabulary, type=tuple[str, list[int]])
        threads = min(os.cpu_count() or 1, MOST_THREADS)
        return cls(xgrammar.TokenizerInfo.deserialize_json(info), eos_ids, threads)

    @property
    def vocabulary(self) -> bytes:
        return msgspec.msgpack.encode((self._tokenizer.serialize_json(), self._eos_ids))

    def compile(self, grammar: Grammar) -> bytes:
        began = time.process_time()
        try:
            compiled = self._compile(grammar)
        except (RuntimeError, ValueError, TypeError) as error:
            if str(error).endswith("std::bad_alloc"):
                raise MemoryError from None
            if grammar.kind == "ebnf" and "::=" not in grammar.text:
                raise GrammarError(NO_RULES) from None
            raise GrammarError.of_library(error) from None
        loaded = CompiledXGrammar(compiled, self._eos_ids, len(grammar.text))
        matcher = loaded.matcher()
        if not matcher.allows_any() or (grammar.kind == "json_schema" and matcher.may_end):
            raise GrammarError("it matches no text at all")
        if time.process_time() - began < QUICK:
            return msgspec.msgpack.encode((grammar, ""))
        with _told_of_memory():
            return msgspec.msgpack.encode((grammar, compiled.serialize_json()))

    def load(self, compiled: bytes) -> CompiledXGrammar:
        grammar, made = msgspec.msgpack.decode(compiled, type=tuple[Grammar, str])
        with _told_of_memory():
            again = xgrammar.CompiledGrammar.deserialize_json
            found = again(made, self._tokenizer) if made else self._compile(grammar)
        return CompiledXGrammar(found, self._eos_ids, found.memory_size_bytes, self._unsaid(grammar.text))

    def _unsaid(self, grammar: str) -> list[int]:
        """The end tokens that the grammar's text does not spell. xgrammar takes end tokens for their texts as well."""
        spelled = (text in grammar or json.dumps(text)[1:-1] in grammar for text in self._ends.values())
        return [token for token, is_spelled in zip(self._ends, spelled, strict=True) if not is_spelled]

    def _compile(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        regexes = list[str]()
        match grammar.kind:
            case "json_schema":
                schema = {} if grammar.text == ANY_JSON else json.loads(grammar.text)
                return self._marked(grammar, json.dumps(_prepared(schema, regexes)), regexes, **_written(schema))
            case "regex":
                return self._marked(grammar, whole_answer(grammar.text), regexes)
            case "ebnf":
                return self._compiler.compile_grammar(grammar.text)
        tag = current(json.loads(grammar.text))
        for part in parts(tag):
            if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
                part["pattern"] = whole_answer(part["pattern"])
            if part.get("type") in OF_SCHEMAS and part.get("json_schema") is None:
                part["json_schema"] = {}
            if isinstance(part.get("json_schema"), dict):
                part["json_schema"] = _prepared(part["json_schema"], regexes, part.get("style") or "json")
            if part.get("type") == "json_schema" and part.get("style") in (None, "json"):
                part.setdefault("max_whitespace_cnt", MAX_WHITESPACE)
        return self._marked(grammar, json.dumps(tag), regexes)

    def _marked(self, grammar: Grammar, prepared: str, regexes: list[str], **options: Any) -> xgrammar.CompiledGrammar:
        """Compile the prepared text of a grammar, with rules in place of its marks (`marked_rules`)."""
        if not is_marked(prepared):
            return getattr(self._compiler, f"compile_{grammar.kind}")(prepared, **options)
        made = getattr(xgrammar.Grammar, f"from_{grammar.kind}")(prepared, **options)
        return self._compiler.compile_grammar(with_rules(str(made), grammar.text, regexes))


class CompiledXGrammar:
    """A grammar as xgrammar compiled it."""

    def __init__(
        self, grammar: xgrammar.CompiledGrammar, eos_ids: list[int], num_bytes: int, unsaid: Sequence[int] = ()
    ) -> None:
        """`unsaid` are end tokens that only end an answer: they are no part of it, whatever text they have."""
        self._grammar = grammar
        self._eos_ids = eos_ids
        self._unsaid = unsaid
        self.num_bytes = num_bytes

    def matcher(self) -> XGrammarMatcher:
        matcher = xgrammar.GrammarMatcher(
            self._grammar,
            override_stop_tokens=self._eos_ids or None,
            terminate_without_stop_token=not self._eos_ids,
        )
        return XGrammarMatcher(matcher, self._grammar.tokenizer_info.vocab_size, self._unsaid)


class XGrammarMatcher:
    """One sequence's place in its grammar."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, vocab_size: int, unsaid: Sequence[int]) -> None:
        self._matcher, self._unsaid = matcher, unsaid
        self.num_words = xgrammar.get_bitmask_shape(1, vocab_size)[1]

    @property
    def may_end(self) -> bool:
        return self._matcher.is_completed()

    def accept(self, token_id: int) -> bool:
        if not self._matcher.accept_token(token_id):
            raise GrammarError(f"the token {token_id} is none that the grammar allows here")
        return self._matcher.is_terminated()

    def num_allowed(self, tokens: Sequence[int]) -> int:
        accepted = 0
        try:
            while accepted < len(tokens) and self._matcher.accept_token(tokens[accepted]):
                accepted += 1
                if self._matcher.is_terminated():
                    return accepted - 1
            return accepted
        finally:
            self._matcher.rollback(accepted)

    def fill(self, bitmask: torch.Tensor | np.ndarray, row: int, ahead: Sequence[int] = ()) -> None:
        for token_id in ahead:
            self._matcher.accept_token(token_id)
        try:
            self._matcher.fill_next_token_bitmask(bitmask, row)
            if not self._matcher.is_completed():
                words = np.asarray(bitmask[row]).view(np.uint32)
                for token_id in self._unsaid:
                    words[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        finally:
            self._matcher.rollback(len(ahead))

    def allows_any(self) -> bool:
        """Whether any token may come next."""
        bitmask = np.zeros((1, self.num_words), dtype=np.int32)
        self.fill(bitmask, 0)
        return bool(bitmask.any())


@contextmanager
def _told_of_memory() -> Iterator[None]:
    """xgrammar's C++ raises RuntimeError when memory runs out; nothing else can go wrong with a compiled grammar."""
    try:
        yield
    except RuntimeError:
        raise MemoryError from None


def _written(schema: Any) -> dict[str, Any]:
    """xgrammar's options for the white space of a schema's JSON."""
    return {"any_whitespace": False} if spaced(schema) else {"max_whitespace_cnt": MAX_WHITESPACE}


def _prepared(schema: Any, regexes: list[str], style: str = "json") -> Any:
    """The schema as xgrammar enforces it in a tag's style, lengths as patterns.

    Its counts allow control characters and lone surrogates.
    """
    if spaced(schema):  # xgrammar would keep an object empty because of these keywords
        schema = {name: value for name, value in schema.items() if name not in SPACED}
    schema = with_dates(enforceable(schema))
    own = _written_as_text(schema, style)
    for node in schemas(schema):
        low, high = node.get("minLength") or 0, node.get("maxLength")
        if "pattern" in node or low or high is not None:
            node.pop("minLength", None), node.pop("maxLength", None)
            text = text_of_string(node.get("pattern", ""), low, high, json=id(node) not in own)
            node["pattern"] = _pattern(text, regexes)
        if named := node.get("patternProperties"):
            node["patternProperties"] = {_pattern(text_of_string(name), regexes): each for name, each in named.items()}
    return _with_shared_strings(schema, own)


def _written_as_text(schema: Any, style: str) -> set[int]:
    """The ids of the schemas whose strings this style of a structural tag writes as text, not as JSON."""
    if style == "json":
        return set()
    return {id(each) for each in (schemas(schema) if style in AS_TEXT else schema.get("properties", {}).values())}


def _with_shared_strings(schema: Any, own: set[int]) -> Any:
    """The schema with strings of the same pattern as references to one definition, which is compiled once."""
    own = own | {id(schema), *(id(node.get("propertyNames")) for node in schemas(schema))}
    names: dict[str, str] = {}
    unlike = "_" * max(map(len, schema.get("$defs", ())), default=0) if isinstance(schema, dict) else ""
    for node in [each for each in schemas(schema) if id(each) not in own and each.get("type") == "string"]:
        if pattern := node.get("pattern"):
            node.clear()
            node["$ref"] = f"#/$defs/{names.setdefault(pattern, f'{unlike}string {len(names)}')}"
    defined = {name: {"type": "string", "pattern": pattern} for pattern, name in names.items()}
    return schema | {"$defs": schema.get("$defs", {}) | defined} if names else schema


def _pattern(text: str, regexes: list[str]) -> str:
    """A pattern of a whole text, or of its mark; a great count gets none, as its states would each try all tokens."""
    if not is_marked(text) and not GREAT.search(text) and len(regexes) < MOST_REGEXES:
        text = mark_of_regex(by_bytes(text.removesuffix(ESCAPED)), regexes)
    return f"^{text}$"
