"""What families with eyes or ears have in common here: a tokenizer of bytes, a template, and sizes of small models."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForMultimodalLM, PreTrainedTokenizerFast

SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
#: The model's own chat template, which reads parts; `{}` are what stands for a video, and for an image or a sound.
TEMPLATE = (
    "{{% for m in messages %}}<|{{{{ m.role }}}}|>{{% for c in m.content %}}"
    "{{% if c.type == 'video' %}}{}{{% elif c.type != 'text' %}}{}{{% else %}}"
    "{{{{ c.text }}}}{{% endif %}}{{% endfor %}}<|end|>{{% endfor %}}"
    "{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}"
)
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
NORMALIZED = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


class Family(NamedTuple):
    """`placeholder` is what a prompt's text has for each medium of the `type`; `make` gives model and processor."""

    type: str
    placeholder: str
    special: list[str]
    make: Callable[[PreTrainedTokenizerFast], tuple[Any, Any]]
    tier: str = "A"
    #: What the tokenizer calls some of its special tokens.
    named: Mapping[str, str] = MappingProxyType({})
    #: What stands for a video.
    video: str = "<|video_pad|>"
    #: Whether its processor can tell a placeholder that was typed in a chat from one that stands for a medium.
    reads_typed: bool = True
    #: Whether a prompt may have more than one.
    several: bool = True
    #: The transformers that has a processor for it without torchvision.
    since: str = "5.17"
    #: What transformers calls it, where more than one of its kind are tried.
    kind: str = ""


def model_of(config: Any) -> Any:
    """With random weights."""
    return AutoModelForMultimodalLM.from_config(config)


def tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """Of single bytes, with the family's special tokens."""
    special = [*SPECIAL, *family.special]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*special, *alphabet])}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    extra = {"extra_special_tokens": dict(family.named)} if family.named else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>", **extra)
    fast.add_special_tokens({"additional_special_tokens": special[1:]})
    return fast
