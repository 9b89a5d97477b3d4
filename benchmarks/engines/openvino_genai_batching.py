"""OpenVINO GenAI's continuous batching over an export by optimum, made once and kept beside the checkpoint."""

import subprocess
import sys
from pathlib import Path

import numpy
import openvino
import openvino_genai

from benchmarks.child import Generate, serve
from benchmarks.workloads import CACHE_BYTES

#: How the weights are stored; the arithmetic of both is bfloat16.
STORED = {"bf16": "fp16", "int8": "int8"}


def load(folder: Path, threads: int) -> Generate:
    # Its pipeline dies with one thread (2026.4).
    options = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": max(2, threads)}
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_BYTES // 2**30
    scheduler.enable_prefix_caching = True
    exported = _exported(folder, STORED[sys.argv[3]])
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(exported), scheduler, "CPU", options)

    def generate(prompts: list[list[int]], new: int, top_p: float | None = None) -> list[list[int]]:
        drawn = {"do_sample": False} if top_p is None else {"do_sample": True, "temperature": 1.0, "top_p": top_p}
        config = openvino_genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, **drawn)
        inputs = [openvino.Tensor(numpy.array([ids], dtype=numpy.int64)) for ids in prompts]
        answers = pipeline.generate(inputs, [config] * len(inputs))
        return [answer.m_generation_ids[0] for answer in answers]

    return generate


def _exported(folder: Path, weights: str) -> Path:
    exported = folder.with_name(f"{folder.name}-openvino-{weights}")
    if not (exported / "openvino_model.xml").is_file():
        command = [Path(sys.executable).with_name("optimum-cli"), "export", "openvino", "--model", folder]
        task = ["--task", "text-generation-with-past", "--weight-format", weights, exported]
        subprocess.run([*command, *task], check=True)
    return exported


if __name__ == "__main__":
    serve(load)
