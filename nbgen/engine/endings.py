"""Why the engine ends requests that did nothing wrong: its memory is the reason, and another try may go well."""

from nbgen.messages import FinishReason

CLOSED = FinishReason(
    type="error",
    message="the engine's memory was released; resume it (or load the model) to go on",
    status=503,
)
NO_MEMORY = FinishReason(
    type="error", message="the GPU's memory has no room for this request now: free some, or try again", status=503
)
#: To who was admitted before memory was released and resumed.
OUTGROWN = FinishReason(
    type="error", message="the KV cache has become too small for this request: ask for fewer tokens", status=503
)
