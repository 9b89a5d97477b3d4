"""The demo model's tokenizer: byte-level BPE with single digits and a token for each role, and its chat template.

Knows nothing of the model.
"""

from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from nbgen.demo import corpus

VOCABULARY = 3072
CONTEXT = 1024
SAMPLE = 20_000
PIECES = r"\p{N}|, (?=\p{N})| ?[\p{L}\p{M}]+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


def untrained() -> Tokenizer:
    """A byte-level tokenizer without a vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def plain_texts(seed: int) -> list[str]:
    """A sample of the corpus without the special tokens."""
    sample = islice(corpus.documents(seed, corpus.EARLY), SAMPLE)
    return [
        piece.text.removesuffix(corpus.END) for pieces in sample for piece in pieces if piece.text not in corpus.SPECIAL
    ]


def trained(seed: int) -> Tokenizer:
    """The tokenizer with a vocabulary learned from the corpus."""
    tokenizer = untrained()
    tokenizer.train_from_iterator(
        plain_texts(seed),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=corpus.SPECIAL,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    begin = tokenizer.token_to_id(corpus.BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{corpus.BEGIN} $A",
        pair=f"{corpus.BEGIN} $A $B",
        special_tokens=[(corpus.BEGIN, begin)],
    )
    return tokenizer


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers saves and loads it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=corpus.BEGIN,
        eos_token=corpus.END,
        pad_token=corpus.PAD,
        additional_special_tokens=list(corpus.ROLES.values()),
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
