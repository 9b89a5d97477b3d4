"""What changes what a model with adapters of peft computes, and is undone again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType

import torch
from peft import LoraConfig, PeftModel
from torch.nn.utils import parametrize

import nbgen

PROMPT = "What the model says, the model says again and again in other words"


def lora(**options: object) -> LoraConfig:
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return LoraConfig(**given | {"init_lora_weights": False, "lora_dropout": 0.5} | options)


def told() -> torch.Tensor:
    return torch.tensor([each.logprob for each in nbgen.logprobs(PROMPT)][1:])


def layer(model: PeftModel) -> torch.nn.Module:
    return model.get_base_model().model.layers[0].mlp.up_proj


@contextmanager
def other_adapter(model: PeftModel) -> Iterator[None]:
    model.set_adapter("two")
    yield
    model.set_adapter("default")


@contextmanager
def all_switched_off(model: PeftModel) -> Iterator[None]:
    with model.disable_adapter():
        yield


@contextmanager
def layers_switched_off(model: PeftModel) -> Iterator[None]:
    model.base_model.disable_adapter_layers()
    yield
    model.base_model.enable_adapter_layers()


@contextmanager
def one_layer_switched_off(model: PeftModel) -> Iterator[None]:
    layer(model).enable_adapters(False)
    yield
    layer(model).enable_adapters(True)


@contextmanager
def scaled(model: PeftModel) -> Iterator[None]:
    layer(model).scale_layer(-3)
    yield
    layer(model).unscale_layer()


@contextmanager
def set_scale(model: PeftModel) -> Iterator[None]:
    layer(model).set_scale("default", 5)
    yield
    layer(model).set_scale("default", 1)


@contextmanager
def added_adapter(model: PeftModel) -> Iterator[None]:
    model.add_adapter("three", lora(use_dora=True))
    model.set_adapter("three")
    yield
    model.set_adapter("default")
    model.delete_adapter("three")


@contextmanager
def several_adapters(model: PeftModel) -> Iterator[None]:
    model.base_model.set_adapter(["default", "two"])
    yield
    model.set_adapter("default")


@contextmanager
def merged_and_switched_off(model: PeftModel) -> Iterator[None]:
    model.merge_adapter()
    with model.disable_adapter():
        yield
    assert not layer(model).merged


@contextmanager
def replaced_layer(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[1].mlp
    before = mlp.down_proj
    mlp.down_proj = torch.nn.Linear(before.in_features, before.out_features, bias=False)
    yield
    mlp.down_proj = before


@contextmanager
def other_data(model: PeftModel) -> Iterator[None]:
    weight = layer(model).base_layer.weight
    before = weight.data
    weight.data = torch.randn_like(before)
    yield
    weight.data = before


@contextmanager
def data_in_place(model: PeftModel) -> Iterator[None]:
    """As averages of weights are put in place of them, past what autograd counts."""
    weight = layer(model).base_layer.weight
    before = weight.data.clone()
    weight.data.copy_(torch.randn_like(before))
    yield
    weight.data.copy_(before)


@contextmanager
def buffer_in_place(model: PeftModel) -> Iterator[None]:
    buffer = model.get_base_model().model.rotary_emb.inv_freq
    buffer.mul_(0.5)
    yield
    buffer.mul_(2)


@contextmanager
def parametrized(model: PeftModel) -> Iterator[None]:
    class Negative(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return -weight

    parametrize.register_parametrization(layer(model).base_layer, "weight", Negative())
    yield
    parametrize.remove_parametrizations(layer(model).base_layer, "weight", leave_parametrized=False)


@contextmanager
def hooked(model: PeftModel) -> Iterator[None]:
    """As vectors steer a model."""
    with layer(model).register_forward_hook(lambda _, inputs, output: output + 3):
        yield


@contextmanager
def other_forward(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[0].mlp
    mlp.forward = MethodType(lambda self, x: -self.down_proj(self.up_proj(x)), mlp)
    yield
    del mlp.forward


@contextmanager
def other_function(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[0].mlp
    before, mlp.act_fn = mlp.act_fn, torch.nn.Tanh()
    yield
    mlp.act_fn = before


@contextmanager
def other_attribute(model: PeftModel) -> Iterator[None]:
    attention = model.get_base_model().model.layers[0].self_attn
    before, attention.scaling = attention.scaling, 3.0
    yield
    attention.scaling = before


@dataclass
class Gain:
    value: float = 1.0


@contextmanager
def in_an_object(model: PeftModel) -> Iterator[None]:
    """That a module looks at, while it remains the same object."""
    mlp = model.get_base_model().model.layers[0].mlp
    mlp.gain = Gain()
    mlp.forward = MethodType(lambda self, x: self.gain.value * type(self).forward(self, x), mlp)
    told()
    mlp.gain.value = -1.0
    yield
    del mlp.forward, mlp.gain


@contextmanager
def other_class(model: PeftModel) -> Iterator[None]:
    mlp = model.get_base_model().model.layers[0].mlp
    before = type(mlp)

    class Other(before):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    mlp.__class__ = Other
    yield
    mlp.__class__ = before


@contextmanager
def patched_class(model: PeftModel) -> Iterator[None]:
    kind = type(model.get_base_model().model.layers[0].mlp)
    before = kind.forward
    kind.forward = lambda self, x: -before(self, x)
    yield
    kind.forward = before


Change = Callable[[PeftModel], object]

CHANGES: list[Change] = [
    other_adapter, all_switched_off, layers_switched_off, one_layer_switched_off, scaled, set_scale, added_adapter,
    several_adapters, merged_and_switched_off, replaced_layer, other_data, data_in_place, buffer_in_place, parametrized,
    hooked, other_forward, other_function, other_attribute, in_an_object, other_class, patched_class,
]  # fmt: skip
