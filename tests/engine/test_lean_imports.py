"""An engine's own process imports less of transformers, and does the same with it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

from nbgen.engine.assembly import Assembly
from nbgen.engine.lean_imports import is_plain
from nbgen.engine.shape_functions import KNOWN
from nbgen.engine_config import EngineConfig
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine import packers
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import generate, ids
from tests.soak import soaking

PROMPT = [5, 6, 7, 8]
WRITE = f"""
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.engine.conftest import build, generate, ids
params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
asked = [GenerateRequest(rid="r", input_ids={PROMPT}, params=params)]
print(ids(generate(build(config.model), asked)["r"]))
"""
#: Imports as an engine does; each line of code that it is told runs in a copy of the process.
LEANLY = """
import os, sys
from nbgen.engine.lean_imports import import_engine
from nbgen.engine_config import EngineConfig
config = EngineConfig(model=sys.argv[1])
import_engine(config)
for line in sys.stdin:
    if not os.fork():
        exec(eval(line))
        sys.stdout.flush()
        os._exit(0)
    print("ended", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
#: What nobody needs who does not compile.
LEFT_OUT = {
    "torch._dynamo.symbolic_convert",
    "torch._inductor",
    "torch.distributed.tensor",
    "sympy.core",
    "torchao",
    "accelerate",
    *(["torch._refs"] if metadata.version("torch").startswith(tuple(KNOWN)) else []),
}
ASK = f"print(sorted(name for name in {LEFT_OUT} if sys.modules.get(name)))"
COMPILE = "import torch; print(torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).tolist())"


def fresh(code: str, *arguments: object, **variables: str) -> list[str]:
    """The lines that a process of its own prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def leanly(tiny_model: Path) -> Iterator[Callable[[str], list[str]]]:
    """What code prints in a process that has imported leanly, each time in a fresh one."""
    command = [sys.executable, "-c", LEANLY, str(tiny_model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def leanly(code: str) -> list[str]:
            print(repr(code), file=process.stdin, flush=True)
            lines: list[str] = []
            for line in process.stdout:
                if line.startswith("ended"):
                    assert line == "ended 0\n"
                    return lines
                lines.append(line.rstrip())
            raise AssertionError("it is gone")

        yield leanly
        process.stdin.close()


def test_it_writes_the_same_without_what_it_leaves_out_and_can_compile_later(
    leanly: Callable[[str], list[str]], tiny_engine: Assembly
) -> None:
    params = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True)
    asked = [GenerateRequest(rid="r", input_ids=PROMPT, params=params)]
    expected = ids(generate(tiny_engine, asked)["r"])
    lines = leanly(WRITE + ASK + "\n" + COMPILE)
    assert lines == [str(expected), "[]", "[2.0, 2.0]"]


def test_layers_that_mark_or_measure_for_the_compiler_bring_none(
    leanly: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Nor do weights that are packed."""
    families = ["mamba2", "qwen3_next", "mixtral"]
    folders = [save_model(tmp_path / family, family, **FAMILIES[family].changes) for family in families]
    described = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    packed, _ = packers.pack(save_model(tmp_path / "llama"), tmp_path, described, packers.gptq(packers.Rounding()))
    asked = [str(folder) for folder in (packed, *folders)]
    each = f"from tests.engine.conftest import build\nfor folder in {asked}: build(folder); {ASK}"
    assert leanly(each) == ["[]"] * 4


def test_a_model_whose_shapes_torch_tells_in_python_alone_is_made_and_measured(
    leanly: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """As is one whose masks are made by torch's `vmap`; and all come in order, whichever is imported first."""
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    folder = str(save_model(tmp_path, rope_parameters=rope | {"original_max_position_embeddings": 64}))
    made = "from transformers import AutoConfig, AutoModelForCausalLM as auto; from nbgen.engine import model_size"
    asked = f"print(model_size._parameters(AutoConfig.from_pretrained({folder!r}), auto))"
    build = f"from tests.engine.conftest import build; print(build({folder!r}).model.parameters)"
    assert len(set(leanly("\n".join([made, asked, build])))) == 1
    print_masks = "print(torch.func.vmap(torch.sum)(torch.ones(2, 3)).tolist()); torch.Generator()"
    for first in ("torch", "torch._prims, torch._refs, torch.utils._content_store"):
        assert leanly(f"import {first}; {print_masks}") == ["[3.0, 3.0]"]


@pytest.mark.parametrize(
    "first",
    [
        soaking("import torch._dynamo.utils"),
        "from torch._dynamo import config, is_compiling",
        soaking("from torch._subclasses.fake_tensor import FakeTensorMode; FakeTensorMode()"),
    ],
)
def test_the_compiler_comes_when_a_part_of_it_is_wanted(first: str, leanly: Callable[[str], list[str]]) -> None:
    assert leanly(first + "\n" + COMPILE) == ["[2.0, 2.0]"]


def test_what_cannot_be_imported_so_is_imported_whole(tmp_path: Path) -> None:
    (tmp_path / "demanding.py").write_text(
        "import transformers.utils.import_utils as known\n"
        "if not known.is_torch_distributed_available() or not known.is_torchao_available():\n"
        "    raise RuntimeError('I need more')\n"
        "import torch\n"
        "print(torch._dynamo.config.cache_size_limit > 0, 'transformers' in __import__('sys').modules)\n"
    )
    code = "from nbgen.engine.lean_imports import import_leanly; import_leanly('demanding')"
    assert fresh(code, PYTHONPATH=str(tmp_path)) == ["True True"]


def folder(place: Path, **described: object) -> str:
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"model_type": "llama", **described}))
    return str(place)


def test_what_may_need_more_is_imported_whole(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = folder(tmp_path / "plain")
    rounded = folder(tmp_path / "rounded", quantization_config={"quant_method": "torchao"})
    damaged = folder(tmp_path / "damaged")
    Path(damaged, "config.json").write_text("{")
    assert is_plain(EngineConfig(model=plain))
    assert is_plain(EngineConfig(model="bundled"))
    assert not is_plain(EngineConfig(model=plain, compile=True))
    assert is_plain(EngineConfig(model=plain, quantization="int8", device="cpu"))
    packed, _ = packers.pack(tiny_model, tmp_path / "made", {"quant_method": "gptq"}, packers.gptq(packers.Rounding()))
    assert is_plain(EngineConfig(model=str(packed), device="cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not is_plain(EngineConfig(model=str(packed))), "there the format's own package reads it"
    assert is_plain(EngineConfig(model=plain))
    assert not is_plain(EngineConfig(model=plain, quantization="int8"))
    for name in (rounded, damaged, "nobody/nothing", "/nonexistent"):
        assert not is_plain(EngineConfig(model=name)), name


def test_a_model_of_the_hub_that_is_here_is_known(tmp_path: Path) -> None:
    kept = tmp_path / "hub" / "models--some--model"
    folder(kept / "snapshots" / "abc")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    code = "import sys\nfrom nbgen.engine.checkpoint import present\nprint(present(sys.argv[1]))"
    assert fresh(code, "some/model", HF_HUB_CACHE=str(tmp_path / "hub")) == [str(kept / "snapshots" / "abc")]
