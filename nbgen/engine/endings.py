"""Why the engine ends requests that did nothing wrong: its memory is the reason, and another try may go well."""

from nbgen.messages import FinishReason

CLOSED = FinishReason.failure("the engine's memory was released; resume it (or load the model) to go on", 503)
NO_MEMORY = FinishReason.failure("the GPU's memory has no room for this request now: free some, or try again", 503)
NO_CACHE = FinishReason.failure(
    "the KV cache's memory was given back while nobody asked anything, and is not free now: free some and ask again",
    503,
)
#: To who was admitted before memory was released and resumed.
OUTGROWN = FinishReason.failure("the KV cache has become too small for this request: ask for fewer tokens", 503)
