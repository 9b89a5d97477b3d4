"""What is measured: prompts that all peers continue alike, and what one measurement holds. Knows no peer."""

from dataclasses import dataclass

PROMPT_TOKENS = 64
NEW_TOKENS = 128


@dataclass(frozen=True)
class Measurement:
    """One run of `streams` requests at once. Seconds are wall clock unless the name says CPU."""

    streams: int
    tokens: int
    seconds: float
    first_token_seconds: float
    cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_ms_per_token(self) -> float:
        return 1000 * self.cpu_seconds / self.tokens


def prompts(count: int, vocab_size: int, repetition: int) -> list[list[int]]:
    """Token ids that no earlier repetition had, so that no cache helps."""
    return [
        [(31 * i + 17 * stream + 101 * repetition) % (vocab_size - 300) + 290 for i in range(PROMPT_TOKENS)]
        for stream in range(count)
    ]
