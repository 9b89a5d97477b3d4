"""The helpers of `import nbgen`, and the one client they share in this kernel.

The first call finds the server, or starts one for this kernel. Knows neither HTTP nor how output is drawn.
No helper has an asynchronous twin: a stream is read by `for`, by `async for` or by `await`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from nbgen import model_hub
from nbgen.errors import InvalidAnswer, InvalidRequest, ServerNotFound, from_status
from nbgen.notebook import passed_on
from nbgen.notebook.discovery import answers, find_server
from nbgen.notebook.display import Answer, LoadProgress, ProgressLine, can_change, show_as_table
from nbgen.notebook.media import media_parts
from nbgen.notebook.models import Models, place
from nbgen.notebook.options import Options, SamplingOptions
from nbgen.notebook.private_server import PrivateServer, sizes
from nbgen.notebook.remote import AnyClient, open_client
from nbgen.notebook.request import Prompt, beside, one_answer, run_body
from nbgen.notebook.result import Result
from nbgen.notebook.schema import Schema
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.signatures import STREAMED, takes_sampling
from nbgen.notebook.status import Status
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.tools import Tools, chat_body

if TYPE_CHECKING:
    from nbgen.live import LiveServer

T = TypeVar("T")
S = TypeVar("S", "PrivateServer", "LiveServer")
Waiting = Callable[[int], None]
STARTING = "starting an nbgen server for this kernel…"
STARTING_LIVE = "starting an nbgen server for this model…"
NONE_FOUND = "no nbgen server found: starting one for this kernel…"

_lock = threading.RLock()
_client: AnyClient | None = None
_private: PrivateServer | LiveServer | None = None
#: `_chosen`: the user has named the server of `_client`. `_asked`: the user has asked for `_private`.
_chosen = _asked = False
#: Called with the new client whenever this kernel changes to another server.
turned: list[Callable[[AnyClient], None]] = []
# After a fork, a thread of the parent that held the lock does not exist and would never release it.
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))


@overload
def generate(
    prompt: Prompt,
    *,
    schema: None = None,
    complete: bool = False,
    system: str | None = None,
    **options: Unpack[Options],
) -> Result: ...


@overload
def generate(
    prompt: Prompt, *, schema: type[T], complete: bool = False, system: str | None = None, **options: Unpack[Options]
) -> T: ...


@overload
def generate(
    prompt: Prompt, *, schema: Any, complete: bool = False, system: str | None = None, **options: Unpack[Options]
) -> Any: ...


@takes_sampling(*STREAMED)
@short_traceback
def generate(
    prompt: Prompt,
    *,
    schema: Any = None,
    complete: bool = False,
    system: str | None = None,
    adapter: str = "",
    tools: Any = (),
    **options: Any,
) -> Any:
    """The model's answer to a text or to chat messages, as a Result. `complete=True` continues the text as it stands.

    It waits for the answer; in asynchronous code `await nbgen.stream(…)` waits without blocking the event loop.
    `images=`, `audio=` and `videos=` are sent along, where the model takes them: one or a list of paths, bytes, PIL
    images, arrays `[height, width, 3]` of bytes or of fractions from 0 to 1, figures, `(samples, rate)`, data URLs; a
    video is also a list of images, an array `[time, height, width, 3]`, or a pair of either and the frames per second.
    With a `schema` (a JSON schema as a dict, a dataclass, a msgspec Struct or a pydantic model) the answer is an object
    of that type. `tools` are functions that the model may call: their signatures (`city: Annotated[str, "where"]`) and
    docstrings describe them; they are called here, and the model gets what they return, until it answers. A tool given
    as OpenAI's JSON is not called: the Result's `tool_calls` hold the calls. `adapter` names a loaded LoRA adapter.
    Without `max_new_tokens` an answer may fill the context, and a text that `complete=True` continues gets 128 tokens
    at most. After Ctrl-C the KeyboardInterrupt has the partial answer as its `result`. Raises InvalidAnswer, which has
    a `result` too, if the answer is not a complete value of the schema.
    """
    box = Tools(tools)
    asked = {"schema": schema, "adapter": adapter, "tools": box}
    answer = first = stream(prompt, complete=complete, system=system, **asked, **options)
    if schema is not None:
        one_answer(first.result.params)
    forming = Answer(table=True) if schema is not None and can_change() else None
    try:
        # They hold for the first answer; from then on the turns have the media.
        later = options | dict.fromkeys(("tool_choice", "images", "audio", "videos"))
        for answer in box.rounds(first, lambda before, told: stream([*before.turns, *told], **asked, **later)):
            for text in answer:
                if forming is not None:
                    forming.update(answer.result, text)
        return answer.result if schema is None else answer.result.value
    except (KeyboardInterrupt, InvalidAnswer) as error:
        error.result = answer.result  # type: ignore[union-attr]
        raise
    finally:
        if forming is not None:
            forming.clear()


@takes_sampling()
@short_traceback
def stream(
    prompt: Prompt,
    *,
    schema: Any = None,
    complete: bool = False,
    system: str | None = None,
    adapter: str = "",
    images: Any = None,
    audio: Any = None,
    videos: Any = None,
    tools: Any = (),
    tool_choice: Any = None,
    template_options: Mapping[str, Any] | None = None,
    logit_processor: Any = None,
    **options: Unpack[SamplingOptions],
) -> TextStream:
    """Like `generate`, but an iterator of text as it comes; its `result` holds the answer so far.

    In asynchronous code: `async for text in nbgen.stream(…)`, or `result = await nbgen.stream(…)`; an asyncio task
    takes `nbgen.stream(…).read()`. The object of a `schema` is the result's `value`. Of the streams awaited at once,
    128 run together. `tools` are not called here: the result's `tool_calls` hold the calls. `tool_choice` is "auto",
    "required", "none" or a function's name; `template_options` are the chat template's own variables, such as
    `{"enable_thinking": False}`. A `logit_processor` changes the logits before each token is chosen: a class with
    `to_str` (see `nbgen.logit_processor`; the server's owner has to allow code), or one of nbgen's own by name, such as
    `{"name": "disallowed_tokens", "args": {"token_ids": [7]}}`.
    """
    wanted = None if schema is None else Schema(schema)
    if wanted is not None:
        options["json_schema"] = wanted.json
        show_as_table(schema)
    media = media_parts(images, audio, videos)
    body = run_body(prompt, complete=complete, system=system, media=media, options=options)
    body |= beside(adapter, logit_processor) | chat_body(tools, tool_choice, template_options)
    result = Result(params=body["params"], messages=body.get("messages"), prompt=body.get("prompt"), schema=wanted)
    result.media = body.get("media", [])
    client = default_client()
    return TextStream(client.run(body), result, LoadProgress(), client.arun(body))


@short_traceback
def load(model: str | os.PathLike[str] | None = None, quantization: str | None = None) -> Status:
    """Load a model, given as a folder, a hub id or "bundled"; replaces the one that is loaded.

    `quantization` of the weights is "int8" (half the memory of bfloat16), "int4" (a third) or "none". None: as the
    server's own option says or, without a `model`, as it was.
    """
    wanted = place(model)
    client = default_client()
    progress = LoadProgress(str(model or client.model().get("name") or "model"))
    try:
        for name, data in client.load(wanted, quantization):
            if name == "progress":
                progress(data)
            elif name == "error":
                raise from_status(data["error"]["code"], data["error"]["message"])
    except KeyboardInterrupt:
        progress.finish()
        print("the server goes on loading; `%nbgen unload` stops it")
        raise
    finally:
        progress.finish()
    return Status(client.url, client.model())


@short_traceback
def unload() -> Status:
    """End the engine and give its memory back."""
    client = default_client()
    return Status(client.url, client.unload())


@short_traceback
def status() -> Status:
    """Which model the server has, and what it is doing."""
    client = default_client()
    return Status(client.url, client.model())


@short_traceback
def models() -> Models:
    """The models that requests can name now, and those that the server can load instead, as far as it knows them."""
    client = default_client()
    return Models(client.models(), client.model())


@short_traceback
def connect(url: str | None = None, token: str = "", *, kind: str = "auto", model: str | None = None) -> AnyClient:
    """Use the server at `url` from now on; without one, the server that this kernel belongs to. Raises when it does
    not answer.

    The `token` may stand in the address, as Jupyter prints it: `http://…/lab?token=…`. The server may be of another
    kind: "sglang", "triton" or "openai" (anything with OpenAI's endpoints). "auto" finds out which. `model` names one
    of several models that a server of another kind serves.
    """
    global _chosen
    client = find_server() if url is None else open_client(url, token, kind, model)
    with _lock:
        _chosen = True
        _use(client)
        _let_go(client)
        passed_on.take_back() if url is None else passed_on.tell(client)
    return client


@short_traceback
def serve(
    model: Any = None,
    tokenizer: Any = None,
    *,
    name: str | None = None,
    context_length: int | None = None,
    kv_cache_bytes: int | None = None,
) -> PrivateServer | LiveServer:
    """Start a server for this kernel alone, and use it from now on. It ends with the kernel or by `stop`.

    `model` names the model to load (None: the bundled one), or is a model object that is being trained here, a causal
    LM of transformers or peft's around one, with its `tokenizer`. Then every answer comes from its present weights: an
    optimizer's step waits for the token that is being computed, and the next tokens come from the new weights.
    The model itself is not changed. `name` is what clients call it ("live"); `context_length` is in tokens.
    Raises InvalidRequest or ModelError for a model that cannot be served; a server from an earlier call then stays.
    """
    options = sizes(context_length=context_length, kv_cache_bytes=kv_cache_bytes)
    if model is None or isinstance(model, str | os.PathLike):
        if tokenizer is not None or name is not None:
            raise InvalidRequest("tokenizer and name go with a model object; a model's name brings its own")
        if (folder := place(model)) is not None:
            model_hub.check(folder)
        return _choose(STARTING, lambda waiting: PrivateServer(folder, waiting, options))
    if "torch" not in sys.modules:
        words = f"model is a name to load, or a causal language model of transformers, got {type(model).__name__}"
        raise InvalidRequest(words, field="model")
    from nbgen.live import LiveModel, LiveServer  # imports torch, as the model already has

    live = LiveModel(model, tokenizer)
    return _choose(STARTING_LIVE, lambda waiting: LiveServer(live, name or "live", options, waiting))


def default_client(start: bool = True) -> AnyClient:
    """The client of this kernel. Without `start` raises ServerNotFound rather than starting a server.

    If the server that the user chose is gone, prints which one is used in its place.
    """
    global _chosen
    with _lock:
        before = _client
        if before is not None and (not before.lost or _is_there(before)):
            return before
        client = _find(start)
        _use(client)
        if _chosen and before is not None and before.url != client.url:
            print(f"the server at {before.url} is gone; the one at {client.url} is used from now on")
        _chosen = False
        return client


def _use(client: AnyClient) -> None:
    """Make it the client of this kernel from now on."""
    global _client
    if client is not _client:
        _client = client
        for hear in turned:
            hear(client)


def _is_there(client: AnyClient) -> bool:
    """Whether to keep a server that a call did not reach: the user's choice if it answers, our own while it runs."""
    if _private is None or client is not _private.client:
        return _chosen and answers(client)
    return _private.running or answers(client)  # in a fork, `running` cannot see the parent's child


def _find(start: bool) -> AnyClient:
    why: list[str] = []
    try:
        found: AnyClient | None = find_server(unusable=why.append)
        passed_on.take_back()
    except ServerNotFound:
        if not start or passed_on.own_environment().get("NBGEN_KIND"):
            raise
        found = None
    print(*why, sep="\n", end="\n" * bool(why))
    if found is not None:
        return found
    words = STARTING if why else NONE_FOUND
    server: PrivateServer = _start(words, lambda waiting: PrivateServer(None, waiting), asked=False)
    assert server.client is not None, "it has answered"
    return server.client


def _let_go(client: AnyClient) -> None:
    """Stop a private server that the user did not ask for, since another server takes its place."""
    global _private
    if _private is not None and not _asked and _private.url != client.url:
        _private.stop()
        _private = None


def _choose(words: str, server: Callable[[Waiting], S]) -> S:
    global _chosen
    with _lock:
        started = _start(words, server, asked=True)
        _chosen = True
        return started


def _start(words: str, server: Callable[[Waiting], S], *, asked: bool) -> S:
    global _private, _asked
    with _lock:
        if _private is not None:
            _private.stop()
        line, outcome = ProgressLine(), ""
        line.show(words)
        try:
            started = server(lambda seconds: line.show(f"{words} {seconds} s"))
            outcome = f"started an nbgen server for this kernel at {started.url}"
        finally:
            line.clear(outcome)
        assert started.client is not None, "it has answered"
        _private, _asked = started, asked
        _use(started.client)
        passed_on.tell(started.client)
        return started
