"""Who may import whom: the layers' table, held against the syntax trees, and against fresh processes."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nbgen"
MESSAGES = {"messages", "engine_state", "pieces", "commands", "tensor_messages", "tokenizer_messages", "frames"}
SHARED = MESSAGES | {
    "sampling_params",
    "date_patterns",
    "engine_config",
    "errors",
    "model_files",
    "model_hub",
    "safetensors_file",
    "sse",
    "keepalive",
    "logit_processor",
    "tensor_spec",
    "bytes_elements",
    "identifiers",
    "media_types",
    "word_lists",
}
BOOKKEEPING = {
    "sequence",
    "drafts",
    "guess",
    "prefix_cache",
    "scheduler",
    "mixed_chunk",
    "deadlines",
    "block_manager",
    "stateful_blocks",
    "snapshots",
    "decode_row",
    "media_prompt",
    "media_queue",
    "slow_lane",
    "detokenizer",
    "chat_rounds",
    "grammar",
    "grammar_limits",
    "marked_rules",
    "json_regex",
    "regex_inclusion",
    "listed_values",
    "schema_keywords",
    "structural_tag",
    "json_types",
    "one_of",
    "other_names",
    "stop_regex",
    "python_regex",
}

#: layer -> (what it may import from nbgen, which third parties)
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "shared": (SHARED, {"msgspec", "dill"}),
    "notebook": (
        {"notebook", "live", "module_export", ""} | SHARED - MESSAGES,
        {
            "httpx",
            "msgspec",
            "IPython",
            "traitlets",
            "ipywidgets",
            "anywidget",
            "jupyter_core",
            "pandas",
            "pydantic",
            "numpy",
            "PIL",
        },
    ),
    "protocols": ({"protocols"} | SHARED, {"msgspec", "numpy", "orjson"}),
    "server": (
        {"server", "protocols", ""} | SHARED,
        {"jupyter_server", "jupyter_core", "tornado", "traitlets", "msgspec", "prometheus_client"}
        | {"grpc", "google", "tritonclient"},
    ),
    "engine": (
        {"engine"} | SHARED,
        {"torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "tqdm", "jinja2", "numpy", "msgspec"}
        | {"torchao", "triton", "xgrammar", "llguidance", "re2", "PIL", "soundfile", "soxr", "av"},
    ),
    # The crossings: a model and a module that live in the kernel. Imported only when one is served.
    "live": ({"engine", "notebook"} | SHARED, set()),
    "module_export": ({"engine"} | SHARED, {"torch"}),
    "demo": ({"demo"}, {"torch", "transformers", "tokenizers", "safetensors", "numpy"}),
}

#: layer -> what it may not import of Python's own library: protocols wait for nothing and start nothing.
NEVER = {"protocols": {"asyncio", "socket", "threading", "subprocess"}}


def layer_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    name = parts[0].removesuffix(".py")
    return name if name in LAYERS else "shared"


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module named in an import, in words or by a call, with what is taken from a package of ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            ours = node.module.count(".") == 0 and node.module == "nbgen"
            yield from (f"nbgen.{alias.name}" if ours else node.module for alias in node.names)
        elif isinstance(node, ast.Call) and _last(node.func).endswith(("import_module", "__import__")):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def _last(called: ast.expr) -> str:
    """Of a name with dots, what is behind the last."""
    return getattr(called, "attr", None) or getattr(called, "id", "")


@cache
def imported_by(path: Path) -> set[str]:
    """Every module that a file names in an import."""
    return set(imported(ast.parse(path.read_text())))


def allowed(module: str, layer: str) -> bool:
    root, _, rest = module.partition(".")
    ours, third_parties = LAYERS[layer]
    if root != "nbgen":
        return root in third_parties | sys.stdlib_module_names - NEVER.get(layer, set())
    part = rest.partition(".")[0]
    return part in ours or (part.startswith("__") and "" in ours)


ENTRY_POINTS = {"__init__.py", "__main__.py"}
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE or p.name not in ENTRY_POINTS)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    layer = layer_of(path)
    assert {m for m in imported_by(path) if not allowed(m, layer)} == set()


#: Imported only where the user, or a dependency that is named, has installed them.
BROUGHT = {"pandas", "pydantic", "triton", "tokenizers", "grpc", "google"}


def test_every_package_that_is_imported_is_asked_for() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [asked for name, asked in project["optional-dependencies"].items() if name not in ("test", "check")]
    asked = {re.match(r"[\w-]+", each)[0] for each in sum(extras, project["dependencies"])}
    roots = {name.partition(".")[0] for path in MODULES for name in imported_by(path)}
    installed_by = packages_distributions()
    others = roots - sys.stdlib_module_names - BROUGHT - {"nbgen"}
    unasked = {root for root in others if asked.isdisjoint(_normal(name) for name in installed_by[root])}
    assert unasked == set()


def _normal(package: str) -> str:
    return package.lower().replace("_", "-")


def test_bookkeeping_is_plain_python() -> None:
    code = f"""
import importlib, sys
for name in {sorted(BOOKKEEPING)}:
    importlib.import_module("nbgen.engine." + name)
    assert not {{"torch", "transformers"}} & sys.modules.keys(), name
"""
    fresh(code)


def test_the_rule_catches_what_it_should() -> None:
    for source, layer in [
        ("from nbgen import engine", "server"),
        ("import torch.nn", "server"),
        ("from nbgen.messages import ChatMessage", "notebook"),
        ("import tornado.web", "protocols"),
        ("from asyncio import sleep", "protocols"),
        ("from nbgen.server import app", "engine"),
        ("import_module('nbgen.engine.loop')", "notebook"),
        ("importlib.import_module('torch')", "protocols"),
    ]:
        assert not all(allowed(m, layer) for m in imported(ast.parse(source))), source


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_package_is_light_in_a_kernel() -> None:
    """In seconds of work, since other work shares the machine."""
    code = """
import sys, time
started = time.process_time()
import nbgen
elapsed = time.process_time() - started
assert "torch" not in sys.modules and "tornado" not in sys.modules
nbgen.generate, nbgen.Chat
assert "torch" not in sys.modules
print(elapsed)
"""
    assert float(fresh(code)) < 0.3


def test_loading_the_extension_imports_no_torch() -> None:
    code = """
import sys, nbgen
nbgen._jupyter_server_extension_points()
print(sorted(m for m in ("torch", "transformers", "nbgen.engine") if m in sys.modules))
"""
    assert fresh(code) == "[]"


def test_a_machine_without_triton_runs_models() -> None:
    code = """
import sys, torch
from nbgen.engine.lean_imports import import_leanly
sys.modules["triton"] = None
import_leanly("nbgen.engine.model_runner")
from nbgen.engine.backends import attention_for
print(type(attention_for(torch.device("cpu"))).__name__)
"""
    assert fresh(code) == "NativeAttention"


def test_every_public_name_is_there() -> None:
    import nbgen

    for name in dir(nbgen):
        assert getattr(nbgen, name) is not None
    assert set(dir(nbgen)) - set(nbgen.__all__) == {"map", "errors", "logit_processor"}
    assert issubclass(nbgen.errors.InvalidRequest, nbgen.NbgenError)
    assert nbgen.logit_processor.CustomLogitProcessor
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = nbgen.nothing_such
