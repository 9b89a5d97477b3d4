"""Nothing that a step launches waits for the device, so that the host may go on while it computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from nbgen.engine.block_manager import BlockManager
from nbgen.engine.cuda_graphs import DecodeGraphs
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.launcher import Launched, Launcher
from nbgen.engine.model_runner import ModelRunner
from nbgen.engine.sampler import Sampler
from nbgen.engine.scheduler import Scheduler
from nbgen.messages import LogprobOptions, TensorOptions
from tests.engine.kernel_build import NEEDS_TRITON
from tests.engine.test_sampler import sequence


class Unseen(TorchDispatchMode):
    """Nothing may wait for the device "meta", whose tensors have no numbers; what is copied from there are zeros."""

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else [arg])]
        devices = {each.device for each in tensors if isinstance(each, torch.Tensor) and each.dim()}
        if function.overloadpacket in (torch.ops.aten.to, torch.ops.aten._to_copy) and kwargs.get("device"):
            assert kwargs.get("non_blocking") or devices == {kwargs["device"]}, "a copy that is waited for"
            if kwargs["device"] == torch.device("cpu"):
                return torch.zeros(args[0].shape, dtype=args[0].dtype)
        else:
            assert len(devices) < 2, f"{function} copies between host and device"
        return function(*args, **kwargs)


class Unwritten(TorchFunctionMode):
    """Nothing may make a tensor there from the host's numbers, or index with a list of them, which torch waits for."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor):
            assert kwargs.get("device") is None, "made on the device"
        if function in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and args[0].is_meta:
            assert not any(isinstance(each, list) for each in (args[1] if isinstance(args[1], tuple) else args[1:2]))
        return function(*args, **kwargs)


KERNELS = {"add_and_norm", "attend_newest", "attend_tiles", "decode_tiles", "gate", "merge_splits"}
KERNELS |= {"multiply_one_row", "turn_and_store"}


class Launches:
    """A kernel that does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: None


def fuse(runner: ModelRunner, patch: pytest.MonkeyPatch) -> None:
    """Have the model run in our own kernels, which are not run: there are no numbers."""
    from nbgen.engine import attention_triton, fused_attention, fused_model, fused_rows

    for module in (attention_triton, fused_attention, fused_rows):
        for name in KERNELS & set(vars(module)):
            patch.setattr(module, name, Launches())
    tables = torch.empty(2048, 8, device="meta")
    patch.setattr(fused_model, "_rotary", lambda *_: (tables, tables))
    runner.attention, runner.fused = attention_triton.TritonAttention(132), fused_model.FusedModel(runner.model)


@pytest.mark.parametrize("ours", [False, pytest.param(True, marks=NEEDS_TRITON)])
@pytest.mark.parametrize("graphs", [False, True])
def test_nothing_that_is_launched_waits(
    graphs: bool, ours: bool, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of two steps and a forward, on tensors that have no numbers to wait for."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval().to("meta")
    runner, launcher = ModelRunner(model, KVCache(32, 16)), Launcher(Sampler(frozenset({0})), 260, lookahead=True)
    scheduler = Scheduler(BlockManager(32, 16), max_running=16, prefill_chunk=64)
    every = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logit_bias": {5: 1.0, 7: -2.0}, "min_new_tokens": 3},
        {"temperature": 0.7},
        {"top_k": 20, "top_p": 0.8},
        {"top_p": 0.9},
        {"min_p": 0.1, "temperature": 1.3},
        {"frequency_penalty": 0.5, "presence_penalty": 0.1, "repetition_penalty": 1.2},
    ]
    for seed, options in enumerate(every):
        scheduler.add(sequence(seed, prompt=(5, 6, 7), **options))
    asking = sequence(7, prompt=(5, 6), top_p=0.9)
    asking.logprobs, asking.tensors = LogprobOptions(top=2, token_ids=[3]), TensorOptions(generation_logits=True)
    scheduler.add(asking)
    with Unwritten(), Unseen():
        finish(launcher.launch(runner, scheduler))
        if ours:
            fuse(runner, monkeypatch)
        if graphs:
            runner.graphs = DecodeGraphs(runner.decode, runner.cache, runner.attention, most=16, blocks=8)
        finish(launcher.launch(runner, scheduler))
        assert [len(each) for each in launcher.ahead.sampled] == [5] * len(every) + [4]
    assert not graphs or runner.graphs.works


def finish(launched: Launched) -> None:
    for each, token in zip(launched.output.sampled, launched.tokens.tolist(), strict=True):
        each.append(token)
