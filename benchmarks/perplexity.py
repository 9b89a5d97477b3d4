"""`python -m benchmarks.perplexity`: what weights of fewer bits cost the bundled model, on chats it was not trained on.

Perplexity is over what the assistant says, as in training, in documents of the training's generator under another seed.
"""

import math
from itertools import islice
from typing import Any

from transformers import AutoTokenizer

from benchmarks.results import Results
from nbgen.demo import corpus
from nbgen.engine.assembly import Assembly, assemble
from nbgen.engine_config import BUNDLED_FOLDER, EngineConfig
from nbgen.messages import GenerateRequest, LogprobOptions
from nbgen.sampling_params import SamplingParams

SEED, DOCUMENTS = 2**31, 60
KINDS = ("float32", "bfloat16", "int8", "int4")


def perplexity(kind: str) -> float:
    """Of the bundled model in this form; weights of fewer bits go with bfloat16, their embeddings' type."""
    rounded = kind if kind.startswith("int") else None
    dtype = "bfloat16" if rounded else kind
    assembly = assemble(EngineConfig(dtype=dtype, quantization=rounded), lambda *_: None)
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_FOLDER)
    documents = islice(corpus.documents(SEED, corpus.EARLY), DOCUMENTS)
    losses = [loss for document in documents for loss in _losses(assembly, tokenizer, document)]
    assembly.close()
    return math.exp(sum(losses) / len(losses))


def _losses(assembly: Assembly, tokenizer: Any, document: corpus.Document) -> list[float]:
    """Of each token that the model is to write."""
    ids, learned = [], []
    for piece in document:
        part = tokenizer.encode(piece.text, add_special_tokens=False)
        ids += part
        learned += [piece.learned] * len(part)
    request = GenerateRequest(
        rid="r",
        input_ids=ids,
        params=SamplingParams(max_new_tokens=1, temperature=0.0),
        logprobs=LogprobOptions(start=0),
    )
    outputs = assembly.engine.add(assembly.admission.sequences(request))
    while assembly.engine.has_work:
        outputs += assembly.engine.step()
    entries = [entry for output in outputs for entry in output.prompt_logprobs]
    return [-entry.token[0] for entry, wanted in list(zip(entries, learned, strict=True))[1:] if wanted]


def main() -> None:
    found = {kind: perplexity(kind) for kind in KINDS}
    Results().keep("perplexity", found)
    print(found)


if __name__ == "__main__":
    main()
