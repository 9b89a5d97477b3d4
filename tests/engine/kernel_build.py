"""Compiles kernels for a GPU that need not be there, and says what it would use of it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from nbgen.engine.attention import Layer

SM = 90
#: The instruction that waits for the kernel before.
WAIT = "griddepcontrol.wait"
NEEDS_TRITON = pytest.mark.skipif(sys.platform != "linux", reason="triton has wheels for Linux alone")


class Build(NamedTuple):
    """A variant: type, widths of keys and values, query heads to a key head; with windows, soft cap and sinks."""

    type: str
    dim: int
    value_dim: int
    group: int
    features: bool = False


class Usage(NamedTuple):
    """Bytes of stack and local memory a thread, and its registers; bytes of shared memory a program.

    Whether matrices go to tensor cores, and the instructions that load from memory, in all and before the kernel waits
    for the one before it.
    """

    stack: int
    local: int
    registers: int
    shared: int
    tensor_cores: bool
    loads: list[str]
    early: list[str]


def usage(build: Build, decodes: bool, folder: Path) -> Usage:
    """Compile the variant for sm_90, in a process where triton does not interpret."""
    from nbgen.engine.attention_kernels import attend_tiles
    from nbgen.engine.attention_triton import tiling

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[build.type]
    query, *layer = (torch.empty(1, n, dim, dtype=dtype) for n, dim in _shapes(build))
    shape = tiling(query, Layer(*layer), decodes=decodes)
    constants = _constants(build, shape, decodes)
    types = {name: _type(name, build, constants) for name in attend_tiles.arg_names}
    return compiled(attend_tiles, types, constants, folder, num_warps=shape.warps, num_stages=shape.stages)


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, object], folder: Path, **options: int) -> Usage:
    """Compile a kernel for sm_90: the types of all its arguments by name, and the values of its constants."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        kernel,
        types,
        {(kernel.arg_names.index(name),): value for name, value in constants.items()},
        {(i,): [["tt.divisibility", 16]] for i, name in enumerate(types) if _aligned(name, types[name])},
    )
    made = triton.compile(
        source, target=GPUTarget("cuda", SM, 32), options={**options, "enable_fp_fusion": True, "launch_pdl": True}
    )
    code, file = made.asm["ptx"], folder / "kernel.cubin"
    file.write_bytes(made.asm["cubin"])
    tool = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    stack, local, registers = (int(re.search(rf"{word}:(\d+)", said)[1]) for word in ("STACK", "LOCAL", "REG"))
    loads, early = (re.findall(r"(?:ld\.global|cp\.async\.c)\S*", ptx) for ptx in (code, code.partition(WAIT)[0]))
    return Usage(stack, local, registers, made.metadata.shared, "mma" in code, loads, early)


def typed(kernel: Any, numbers: dict[str, str], constants: dict[str, Any]) -> dict[str, str]:
    """The types of all arguments: of the constants, of what is said, and of tensors of bfloat16."""
    kinds = {**dict.fromkeys(constants, "constexpr"), **numbers}
    return {name: kinds.get(name, "*bf16") for name in kernel.arg_names}


def one_row_s(outputs: int, inputs: int, normed: bool, gated: bool, folder: Path) -> tuple[Usage, int]:
    from nbgen.engine.decoder_kernels import multiply_one_row
    from nbgen.engine.fused_rows import part

    block_n, block_k, warps = part(outputs, inputs, normed=normed)
    flags = {"NORMED": normed, "GATED": gated, "HAS_BIAS": False, "ADDS": not normed, "OVERLAPS": True}
    constants = {**flags, "BLOCK_N": block_n, "BLOCK_K": block_k}
    numbers = {"inputs": "i32", "outputs": "i32", "epsilon": "fp32"}
    return compiled(
        multiply_one_row, typed(multiply_one_row, numbers, constants), constants, folder, num_warps=warps
    ), warps


def others(group: int, dim: int, folder: Path) -> list[Usage]:
    from nbgen.engine.decoder_kernels import add_and_norm, gate, turn_and_store

    strides = dict.fromkeys(("key_stride", "key_head_stride", "value_stride", "value_head_stride"), "i32")
    numbers = {"positions": "*i64", "slots": "*i64", "epsilon": "fp32", **strides}
    heads = {"GROUP": group, "KV_HEADS": 8, "DIM": dim, "NORMED": True, "BLOCK_H": 8, "BLOCK_D": 64, "OVERLAPS": True}
    made = [compiled(turn_and_store, typed(turn_and_store, numbers, heads), heads, folder, num_warps=1)]
    numbers, sizes = {"size": "i32", "epsilon": "fp32"}, {"ADDS": True, "BLOCK": 4096, "OVERLAPS": True}
    made.append(compiled(add_and_norm, typed(add_and_norm, numbers, sizes), sizes, folder, num_warps=8))
    part = {"BLOCK": 1024, "OVERLAPS": True}
    return [*made, compiled(gate, typed(gate, {"size": "i32"}, part), part, folder, num_warps=4)]


def _shapes(build: Build) -> list[tuple[int, int]]:
    return [(build.group, build.dim), (1, build.dim), (1, build.value_dim)]


def _constants(build: Build, shape: tuple[int, ...], decodes: bool) -> dict[str, object]:
    from nbgen.engine.attention_triton import width

    names = ("HAS_SOFTCAP", "HAS_SINKS", "HAS_WINDOW")
    return dict.fromkeys(names, build.features) | {
        "GROUP": build.group,
        "SPLIT": decodes,
        "OVERLAPS": True,
        "PAGE": 16,
        "DIM": build.dim,
        "VALUE_DIM": build.value_dim,
        "BLOCK_M": shape[0],
        "BLOCK_N": shape[1],
        "BLOCK_D": width(build.dim),
        "BLOCK_V": width(build.value_dim),
        "PRECISION": "ieee" if build.type == "fp32" else "tf32",
    }


def _type(name: str, build: Build, constants: dict[str, object]) -> str:
    if name in constants:
        return "constexpr"
    if name in ("queries", "keys", "values", "sinks", "output", "log_sums"):
        own = name not in ("output", "log_sums") or not constants["SPLIT"]
        return f"*{build.type}" if own else "*fp32"
    return {"tiles": "*i32", "tables": "*i32", "scale": "fp32", "softcap": "fp32"}.get(name, "i32")


def _aligned(name: str, kind: str) -> bool:
    return kind.startswith("*") or name.endswith("stride") or name in ("inputs", "outputs", "size")
