"""A live model with adapters of peft. Never imports peft: whoever has such a model has imported it."""

import sys
from typing import Any

import torch
from torch import nn

from nbgen.errors import InvalidRequest


def is_peft(model: Any) -> bool:
    """Whether it is a peft model, wrapped around a transformers model."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel | peft.PeftMixedModel)


def base_of(model: Any) -> Any:
    """The transformers model inside, whose layers hold the adapters.

    Raises InvalidRequest if it does not compute by itself what the peft model does: for adapters that put tokens before
    the prompt, or that become active somewhere in a text.
    """
    peft, tuner, configurations = sys.modules["peft"], model.base_model, model.peft_config.values()
    known = (peft.tuners.tuners_utils.BaseTuner.forward, peft.AdaLoraModel.forward)
    plain = getattr(type(tuner), "forward", None) in known
    begins = any(getattr(each, "alora_invocation_tokens", None) for each in configurations)
    if not plain or begins or any(each.is_prompt_learning for each in configurations):
        kinds = ", ".join(sorted({each.peft_type.value for each in configurations}))
        raise InvalidRequest(
            f"the model's adapter ({'activated LoRA' if begins else kinds}) acts outside the model's layers, where "
            "serve does not run it: serve the model without the adapter"
        )
    return tuner.model


@torch.no_grad()
def settle(model: nn.Module) -> None:
    """Unmerge adapters that are merged but switched off, as the layers' own forward would.

    The forward of a copy that shares the weights must not do it: the original layers would not know of that.
    """
    for module in model.modules():
        if getattr(module, "merged", False) is True and getattr(module, "disable_adapters", False) is True:
            module.unmerge()  # type: ignore[operator]  # a layer of peft
