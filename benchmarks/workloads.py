"""What is asked of every engine: prompts as token ids and how many tokens to add. Knows no engine; plain Python, so
that it also runs in a peer's own environment.

Greedy but where one says otherwise; without an end token, so that all do equal work. Prompts are random ids, new ones
for each seed, so that no cache of an earlier one helps.
"""

import random
from typing import NamedTuple

#: For keys and values, in every engine that has a cache of its own.
CACHE_BYTES = 2 * 2**30
#: Ids below it stand for special tokens and single bytes in the vocabularies used here.
FIRST_ID = 300


class Workload(NamedTuple):
    """`requests` prompts at once: `shared` tokens they begin with alike and `own` more each; `new` to be generated.

    With a `top_p` they are drawn, at a temperature of 1.
    """

    name: str
    title: str
    requests: int
    shared: int
    own: int
    new: int
    top_p: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Of one request."""
        return self.shared + self.own

    @property
    def tokens(self) -> int:
        """What a rate counts: the prompt's where only one token is generated, else the generated."""
        return self.requests * (self.prompt_tokens if self.new == 1 else self.new)

    def fits(self, context_length: int) -> bool:
        return self.prompt_tokens + self.new < context_length

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        chance = random.Random(f"{self.name} {seed}")
        shared = chance.choices(range(FIRST_ID, vocab_size), k=self.shared)
        return [shared + chance.choices(range(FIRST_ID, vocab_size), k=self.own) for _ in range(self.requests)]


#: What an engine does once before it counts as started.
FIRST_TOKEN = Workload("start", "cold start to first token", 1, 0, 16, 1)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("single", "single stream, 128 + 128", 1, 0, 128, 128),
        Workload("four", "4 concurrent, 128 + 128", 4, 0, 128, 128),
        Workload("eight", "8 concurrent, 128 + 128", 8, 0, 128, 128),
        Workload("concurrent", "16 concurrent, 128 + 128", 16, 0, 128, 128),
        Workload("sampled", "16 concurrent, drawn with top-p 0.95, 128 + 128", 16, 0, 128, 128, 0.95),
        Workload("prefill", "prompt of 1,024 tokens", 1, 0, 1024, 1),
        Workload("prefix", "16 with a shared prefix, 900 + 50 + 32", 16, 900, 50, 32),
    )
}
