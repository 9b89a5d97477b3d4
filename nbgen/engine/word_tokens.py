"""Words that an answer must not contain, as tokens, and words that end it, as text.

A forbidden word is a list of tokens: its last token is forbidden wherever the answer ends with those before it, as in
vLLM and TensorRT-LLM. Knows no tensors.
"""

from collections.abc import Iterable, Sequence

from nbgen.engine.tokenizer import Tokenizer
from nbgen.errors import InvalidRequest
from nbgen.word_lists import WordLists

Word = tuple[int, ...]


def bad_words(words: WordLists | None, tokenizer: Tokenizer) -> tuple[Word, ...]:
    """The forbidden words as tokens, each without and with a space before it."""
    if words is None:
        return ()
    spellings = [prefix + text.lstrip() for text in words.bad for prefix in ("", " ")]
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in spellings]
    return tuple(dict.fromkeys(tuple(word) for word in (*encoded, *words.bad_ids) if word))


def stop_words(words: WordLists | None, tokenizer: Tokenizer) -> list[str]:
    """The texts of words given as tokens that end an answer. Raises InvalidRequest for tokens that are no text."""
    if words is None:
        return []
    decode = tokenizer.decoder(skip_special_tokens=True, spaces_between=True)
    texts = [decode(word) for word in words.stop_ids]
    for word, text in zip(words.stop_ids, texts, strict=True):
        if not text or "\ufffd" in text:
            raise InvalidRequest(f"the stop word of the token ids {word[:20]} is no text: give its last token alone")
    return texts


def forbidden(words: Iterable[Word], output: Sequence[int]) -> frozenset[int]:
    """The tokens that would complete a word after `output`."""
    return frozenset(word[-1] for word in words if tuple(output[len(output) - len(word) + 1 :]) == word[:-1])
