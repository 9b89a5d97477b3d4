"""nbgen: run a language model from a notebook.

    nbgen.generate("What is 3 + 4?")                    a result: .text, .usage, .finish_reason
    for text in nbgen.stream("Tell me a story"): …      its text as it comes
    nbgen.Chat()                                        the chat panel; talk = nbgen.chat() without one
    nbgen.map(df["review"], "Positive or negative? {{value}}")   a DataFrame of answers
    nbgen.generate("Anna lives in Rome.", schema=Person)    an object: dataclass, msgspec, pydantic, JSON schema
    nbgen.generate("Rain in Oslo?", tools=[forecast])   a function of yours, called as the model wants
    nbgen.compare("Hello", temperature=[0, 0.7, 1])     settings or models side by side
    nbgen.load("./my-model")                            any causal language model: a folder or a hub id
    nbgen.status(), nbgen.monitor()                     what the server is doing
    %load_ext nbgen                                     the magics %%nbgen and %nbgen; %nbgen? lists more

A server is found, or started for this kernel, by the first call. `help(nbgen.generate)` has all options.

Names are loaded on first use, so that `import nbgen` stays light and never imports torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what follows does at run time, where it is asked for
    from nbgen import errors as errors
    from nbgen import logit_processor as logit_processor
    from nbgen.errors import NbgenError as NbgenError
    from nbgen.notebook.adapters import load_adapter as load_adapter
    from nbgen.notebook.adapters import unload_adapter as unload_adapter
    from nbgen.notebook.chat import Chat as Chat
    from nbgen.notebook.client import Client as Client
    from nbgen.notebook.compare import compare as compare
    from nbgen.notebook.conversation import chat as chat
    from nbgen.notebook.dataset import map as map
    from nbgen.notebook.embeddings import embed as embed
    from nbgen.notebook.embeddings import hidden_states as hidden_states
    from nbgen.notebook.monitor import monitor as monitor
    from nbgen.notebook.register import register as register
    from nbgen.notebook.result import Result as Result
    from nbgen.notebook.session import connect as connect
    from nbgen.notebook.session import generate as generate
    from nbgen.notebook.session import load as load
    from nbgen.notebook.session import models as models
    from nbgen.notebook.session import serve as serve
    from nbgen.notebook.session import status as status
    from nbgen.notebook.session import stream as stream
    from nbgen.notebook.session import unload as unload
    from nbgen.notebook.stream import Stream as Stream
    from nbgen.notebook.tensors import infer as infer
    from nbgen.notebook.tokens import detokenize as detokenize
    from nbgen.notebook.tokens import logprobs as logprobs
    from nbgen.notebook.tokens import tokenize as tokenize

# Above those of PyPI's other project of this name: an upgrade must not put that one in our place.
__version__ = "0.2.0"

_HOMES = {
    "Chat": "nbgen.notebook.chat",
    "Client": "nbgen.notebook.client",
    "NbgenError": "nbgen.errors",
    "Result": "nbgen.notebook.result",
    "Stream": "nbgen.notebook.stream",
    "chat": "nbgen.notebook.conversation",
    "compare": "nbgen.notebook.compare",
    "connect": "nbgen.notebook.session",
    "detokenize": "nbgen.notebook.tokens",
    "embed": "nbgen.notebook.embeddings",
    "generate": "nbgen.notebook.session",
    "hidden_states": "nbgen.notebook.embeddings",
    "infer": "nbgen.notebook.tensors",
    "load": "nbgen.notebook.session",
    "load_adapter": "nbgen.notebook.adapters",
    "logprobs": "nbgen.notebook.tokens",
    "map": "nbgen.notebook.dataset",
    "models": "nbgen.notebook.session",
    "monitor": "nbgen.notebook.monitor",
    "register": "nbgen.notebook.register",
    "serve": "nbgen.notebook.session",
    "status": "nbgen.notebook.session",
    "stream": "nbgen.notebook.session",
    "tokenize": "nbgen.notebook.tokens",
    "unload": "nbgen.notebook.session",
    "unload_adapter": "nbgen.notebook.adapters",
}

_MODULES = ("errors", "logit_processor")

#: For `import *`, which is not to replace Python's own map.
__all__ = [*(name for name in _HOMES if name != "map"), "__version__"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"nbgen.{name}")
        if name not in _HOMES:
            raise _unknown(name)
        return getattr(import_module(_HOMES[name]), name)


def _unknown(name: str) -> BaseException:
    """With what was probably meant."""
    from difflib import get_close_matches

    alike = get_close_matches(name, __dir__(), 1)
    meant = f"; did you mean {alike[0]!r}?" if alike else ""
    error = AttributeError(f"module 'nbgen' has no attribute {name!r}{meant}", obj=None)  # or Python adds it once more
    if "IPython" not in sys.modules:
        return error
    from nbgen.notebook.short_traceback import shortened

    return shortened(error)


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_MODULES, "__version__"])


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from nbgen.server.app import NbgenApp

    return [{"module": "nbgen", "app": NbgenApp}]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext nbgen`: register the magics."""
    from nbgen.notebook.magics import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext nbgen`: remove them again."""
    from nbgen.notebook.magics import unregister

    unregister(shell)
