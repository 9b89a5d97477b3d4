"""A byte-level tokenizer of any size, made rather than trained: bytes, then pieces of two, three and four letters.

Digits stand alone, so a text of n digits is n tokens.
"""

from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END, USER, ASSISTANT = SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save(folder: Path, size: int) -> list[int]:
    """Write a tokenizer of `size` tokens; the ids that a random model should never choose, being no text alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(islice(_merges(), size - len(SPECIAL) - len(alphabet)))
    tokens = [*SPECIAL, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.add_special_tokens({"additional_special_tokens": [USER, ASSISTANT]})
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return [*range(len(SPECIAL)), *(i for i, token in enumerate(tokens) if not token.isascii())]


def _merges() -> Iterator[tuple[str, str]]:
    for length in (1, 2, 3):
        for letters in product(ascii_lowercase, repeat=length + 1):
            yield "".join(letters[:-1]), letters[-1]
