"""The finish reasons of requests that the engine ends or refuses: an abort, an error, lack of memory, a failing model.

Does not know when these occur.
"""

from nbgen.errors import NbgenError
from nbgen.messages import FinishReason, GenerateOutput, StepOutputs

#: For a request that was aborted before its turn.
ABORTED = FinishReason(type="abort", message="Abort in waiting queue")
CLOSED = FinishReason.failure("the engine's memory was released; resume it (or load the model) to go on", 503)
NO_MEMORY = FinishReason.failure("there is no memory for this request now: free some, or try again", 503)
#: For a request whose forward raises an error even when it runs alone.
FAILED = FinishReason.failure("the model fails at this request; the server's log says why", 500)
NO_CACHE = FinishReason.failure(
    "the KV cache's memory was given back while nobody asked anything, and is not free now: free some and ask again",
    503,
)
#: For an answer that no message can hold.
UNSENDABLE = FinishReason.failure("the answer cannot be sent, perhaps for its size: ask for less of it", 400)
#: For a request that was admitted before memory was released and resumed.
OUTGROWN = FinishReason.failure("the KV cache has become too small for this request: ask for fewer tokens", 503)


def ending(rid: str, reason: FinishReason, samples: int = 1) -> StepOutputs:
    """The message that ends each of a request's samples without another word."""
    return StepOutputs(outputs=[GenerateOutput(rid=rid, index=index, finish_reason=reason) for index in range(samples)])


def ended_by(error: NbgenError) -> FinishReason:
    """For a request that this error ends."""
    return FinishReason.failure(error.message, error.status, error.field, error.code)


def queue_full(waiting: int, arriving: int, most: int) -> FinishReason:
    """For a request of `arriving` samples when `waiting` of at most `most` wait already."""
    if arriving > most:  # and not even an empty queue would do
        return FinishReason.failure(f"n is {arriving}, and at most {most} samples may wait here: ask for fewer", 400)
    return FinishReason.failure(f"the queue is full ({waiting} waiting)", 503)
