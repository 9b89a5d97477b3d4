"""The servers that are compared over HTTP, each started as its users start it. All speak OpenAI's `/v1/completions`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.peers import OURS, PEERS, Peer
from benchmarks.workloads import CACHE_BYTES

#: Tokens of the pool that transformers' server cannot size by itself on a CPU.
POOL_BLOCKS, BLOCK_TOKENS, STEP_TOKENS = "1280", "16", "1024"


OURS_SERVED = "nbgen-served"


class Service(NamedTuple):
    """How a server starts: `command` makes its arguments of folder, port and threads; `extras` go into each body.

    Where it is `paced` by a clock, its CPU time alone says something.
    """

    name: str
    title: str
    peer: Peer
    command: Callable[[Path, int, int], list[str]]
    extras: Mapping[str, Any] = MappingProxyType({})
    variables: Callable[[int], dict[str, str]] = lambda threads: {}
    paced: bool = False


def _nbgen(folder: Path, port: int, threads: int) -> list[str]:
    model = [f"--model={folder}", f"--port={port}", f"--NbgenApp.threads={threads}"]
    # The process that stands by would import beside the first measurements.
    options = ["--NbgenApp.standby=False", "--NbgenApp.draft_tokens=0"]
    return ["-m", "nbgen", *model, *options, "--allow-root", "--IdentityProvider.token="]


def _transformers(folder: Path, port: int, threads: int) -> list[str]:
    pool = ["--cb-num-blocks", POOL_BLOCKS, "--cb-block-size", BLOCK_TOKENS, "--cb-max-batch-tokens", STEP_TOKENS]
    start = "from transformers.cli.transformers import main; main()"
    return ["-c", start, "serve", str(folder), "--continuous-batching", *pool, "--port", str(port)]


def _vllm(folder: Path, port: int, threads: int) -> list[str]:
    model = ["--model", str(folder), "--dtype", "bfloat16", "--max-model-len", "2048", "--port", str(port)]
    return ["-m", "vllm.entrypoints.openai.api_server", *model]


def _vllm_variables(threads: int) -> dict[str, str]:
    fixed = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": str(CACHE_BYTES // 2**30)}
    return {"VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}", **fixed}


def _tornado(folder: Path, port: int, threads: int) -> list[str]:
    return ["-m", "benchmarks.bare_tornado", str(port)]


_NO_END = json.dumps({"max_new_tokens": 128, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0})
SERVICES = {
    service.name: service
    for service in (
        Service(OURS_SERVED, "nbgen", PEERS[OURS], _nbgen, {"ignore_eos": True}),
        Service(
            "transformers-serve",
            "transformers serve",
            Peer("", "", "", "transformers", "pip install 'transformers[serving]'"),
            _transformers,
            {"generation_config": _NO_END},
        ),
        Service(
            "vllm-served",
            "vLLM CPU",
            PEERS["vllm"],
            _vllm,
            {"ignore_eos": True},
            _vllm_variables,
        ),
        Service("tornado-alone", "Tornado alone", PEERS[OURS], _tornado, paced=True),
    )
}
