"""Why the engine ends requests, or does not take them in, for want of room: mostly another try may go well."""

from nbgen.messages import FinishReason

CLOSED = FinishReason.failure("the engine's memory was released; resume it (or load the model) to go on", 503)
NO_MEMORY = FinishReason.failure("there is no memory for this request now: free some, or try again", 503)
#: To who makes the model raise something, with nobody beside it.
FAILED = FinishReason.failure("the model fails at this request; the server's log says why", 500)
NO_CACHE = FinishReason.failure(
    "the KV cache's memory was given back while nobody asked anything, and is not free now: free some and ask again",
    503,
)
#: To who was admitted before memory was released and resumed.
OUTGROWN = FinishReason.failure("the KV cache has become too small for this request: ask for fewer tokens", 503)


def queue_full(waiting: int, arriving: int, most: int) -> FinishReason:
    """To a request of `arriving` samples where so many wait already."""
    if arriving > most:  # and not even an empty queue would do
        return FinishReason.failure(f"n is {arriving}, and at most {most} samples may wait here: ask for fewer", 400)
    return FinishReason.failure(f"the queue is full ({waiting} waiting)", 503)
