"""Random LoRA adapters, made and saved by peft as a user's would be, and what peft itself writes with them.

Also where transformers was imported without what peft asks of it, as long as nobody wants an adapter there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM

from tests.conftest import continuation, edit, made_once

if TYPE_CHECKING:
    from peft import PeftModel


def save_adapter(folder: Path, model: Path, seed: int = 0, **options: Any) -> Path:
    """An adapter of all linear layers whose matrices are large enough to change the text."""
    return made_once(folder, (str(model), seed, options), lambda place: _make(place, model, seed, options))


def _make(folder: Path, model: Path, seed: int, options: dict[str, Any]) -> None:
    torch.manual_seed(seed)
    adapted = peft_model(model, **options)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.15)
    adapted.save_pretrained(folder)


def peft_model(model: Path, **options: Any) -> PeftModel:
    """An untrained adapter over the model."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | options)
    return get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), config)


def peft_continuation(model: Path, adapter: Path | None, prompt: list[int], new_tokens: int) -> list[int]:
    """peft's own greedy continuation in float32."""
    (written,) = peft_continuations(model, adapter, [prompt], new_tokens)
    return written


def peft_continuations(
    model: Path, adapter: Path | None, prompts: list[list[int]], new_tokens: int, found: list[list[int]] | None = None
) -> list[list[int]]:
    """Those of several prompts, one at a time. `found` as in `continuation`."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    if adapter is not None:
        from peft import PeftModel

        loaded = PeftModel.from_pretrained(loaded, adapter).eval()
    pairs = zip(prompts, found or [None] * len(prompts), strict=True)
    return [continuation(loaded, prompt, new_tokens, tokens) for prompt, tokens in pairs]


def change_config(adapter: Path, **changes: Any) -> None:
    """Rewrite some of the adapter's options."""
    edit(adapter / "adapter_config.json", **changes)
