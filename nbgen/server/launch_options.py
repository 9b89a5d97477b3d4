"""Options on the command line: short names of NbgenApp's options, also those of SGLang's launcher, and JSON values."""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn

from traitlets import Dict
from traitlets.config.loader import KVArgParseConfigLoader

from nbgen.engine_config import EngineConfig
from nbgen.protocols.sglang_info import ServerOptions
from nbgen.server.engine_options import EngineOptions
from nbgen.server.life_options import LifeOptions


class JsonDict(Dict):
    """A dictionary of JSON values: NAME=VALUE, repeatable, or a JSON object. A value that is no JSON is text."""

    def item_from_string(self, s: str) -> dict[str, Any]:
        return {name: _json(value) for name, value in super().item_from_string(s).items()}

    def from_string_list(self, s_list: list[str]) -> Any:
        found = _json(s_list[0]) if len(s_list) == 1 else None
        return found if isinstance(found, dict) else super().from_string_list(s_list)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


ALIASES: dict[str, str | tuple[str, str]] = {
    "model": "NbgenApp.model",
    "device": "NbgenApp.device",
    "dtype": "NbgenApp.dtype",
    "quantization": "NbgenApp.quantization",
    # The names of SGLang's launcher.
    "model-path": "NbgenApp.model",
    "context-length": "NbgenApp.context_length",
    "kv-cache-dtype": "NbgenApp.kv_cache_dtype",
    "sampling-defaults": "NbgenApp.sampling_defaults",
    "grammar-backend": "NbgenApp.grammar_backend",
    "max-running-requests": "NbgenApp.max_running",
    "max-queued-requests": "NbgenApp.max_waiting",
    "chunked-prefill-size": "NbgenApp.prefill_chunk",
    "speculative-num-draft-tokens": "NbgenApp.draft_tokens",
    "preferred-sampling-params": "NbgenApp.preferred_sampling_params",
    "stream-interval": "NbgenApp.stream_interval",
    "adapters": "NbgenApp.adapters",
    "lora-paths": "NbgenApp.adapters",
    "allow-media-host": "NbgenApp.allow_media_hosts",
    "media-root": "NbgenApp.media_root",
    "host": "ServerApp.ip",
    "api-key": (
        "IdentityProvider.token",
        "The token that callers show. All users of the machine can see a command line: the variable JUPYTER_TOKEN "
        "tells it to the server alone.",
    ),
    "max-connections": "StandaloneServerApp.max_connections",
}


def _flag(name: str, words: str) -> tuple[dict[str, Any], str]:
    return {"NbgenApp": {name: True}}, words


FLAGS: dict[str, tuple[dict[str, Any], str]] = {
    "incremental-streaming-output": _flag("incremental_streaming_output", "Streams of what is new only."),
    "allow-auto-truncate": _flag("allow_auto_truncate", "Cut what the context does not hold."),
    "enable-torch-compile": _flag("compile", "Compile the model's small operations."),
    "enable-custom-logit-processor": _flag("enable_custom_logit_processor", "Run Python code that clients send."),
    "open-health": _flag("open_health", "Tell who shows no token how the server is."),
    # Options that SGLang's servers need for what this one does anyway.
    "enable-lora": ({}, "Adapters are served anyway."),
    "enable-metrics": ({}, "Metrics are there anyway."),
    "enable-return-hidden-states": ({}, "Hidden states are given anyway."),
    "enable-return-routed-experts": ({}, "Routed experts are given anyway."),
}

_LEAVE_IT_OUT = "adapters of any rank and any linear layers are served: leave it out"
#: Other options of SGLang's, with what to do here instead.
REFUSED: dict[str, str] = {
    "chat-template": "the template is that of the model's folder",
    "disable-radix-cache": "prefixes are shared always, and POST /flush_cache forgets them",
    "enable-deterministic-inference": "a request with a sampling_seed has the same random numbers each time, "
    "and where nbgen's C++ computes (/server_info says so) the same scores, whatever runs beside it",
    "is-embedding": "a model that makes embeddings is known by its folder: leave it out",
    "lora-target-modules": _LEAVE_IT_OUT,
    "max-lora-rank": _LEAVE_IT_OUT,
    "mem-fraction-static": "say how much by --NbgenApp.kv_cache_bytes",
    "page-size": "prefixes are shared to the token: leave it out",
    "random-seed": "give each request its own sampling_seed",
    "served-model-name": "clients of OpenAI's routes may ask for the model by any name",
    "speculative-algorithm": "tokens are guessed by n-grams alone; --speculative-num-draft-tokens says how many",
    "tokenizer-path": "the tokenizer is that of the model's folder",
}


def command(config: EngineConfig, options: ServerOptions) -> str:
    """The command that starts a server with this model and these options, where not default. Others may be secrets."""
    usual, words = EngineConfig(), ["jupyter nbgen"]
    named = [(trait, alias) for alias, trait in reversed(ALIASES.items()) if isinstance(trait, str)]
    aliases = {trait.removeprefix("NbgenApp."): alias for trait, alias in named}
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if name == "model" or value not in (None, getattr(usual, name)):
            words.append(shlex.quote(f"--{aliases.get(name, f'NbgenApp.{name}')}={value}"))
    return " ".join(words + _generate_options(options))


def _generate_options(options: ServerOptions) -> list[str]:
    """The options of `/generate` that are not default."""
    given = {
        "--incremental-streaming-output": options.incremental,
        "--allow-auto-truncate": options.truncate,
        f"--stream-interval={options.interval}": options.interval > 1,
        f"--preferred-sampling-params={json.dumps(options.preferred)}": bool(options.preferred),
    }
    return [shlex.quote(word) for word, unusual in given.items() if unusual]


def apart(arguments: Sequence[str]) -> list[str]:
    """Split SGLang's `--lora-paths NAME=FOLDER FOLDER …` into one option each; a missing name is that of the folder."""
    found, several = list[str](), False
    for argument in arguments:
        if argument.startswith("-"):
            several = argument == "--lora-paths"
        elif several:
            named = "=" in argument or argument.startswith("{")
            argument = f"--lora-paths={argument if named else f'{argument}={argument}'}"
        found.append(argument)
    return [argument for argument in found if argument != "--lora-paths"]


def refuse_foreign(arguments: Sequence[str], traits: Iterable[str]) -> None:
    """Exit with a message for a command, an option that only SGLang's launcher has, or a trait that NbgenApp lacks."""
    if arguments and not arguments[0].startswith("-"):
        sys.exit(f"nbgen has no command {arguments[0]!r}: it has options only, and --help lists them")
    known = {name: name for name in (f"NbgenApp.{trait}" for trait in traits)}
    for argument in takewhile(lambda argument: argument != "--", arguments):
        name = argument.removeprefix("--").partition("=")[0]
        if argument.startswith("--") and name in REFUSED:
            sys.exit(f"nbgen has no --{name}: {REFUSED[name]}")
        if argument.startswith("--NbgenApp.") and name.count(".") == 1 and name not in known:
            _refuse(name, known)


def _refuse(name: str, known: Mapping[str, str]) -> NoReturn:
    """Exit, suggesting an option. `known` are the existing options, by names that users may have meant them by."""
    meant = "".join(f"; did you mean --{known[near]}?" for near in get_close_matches(name, known, 1))
    sys.exit(f"nbgen has no --{name}{meant or ': --help-all lists what it has'}")


class OptionsAlone(KVArgParseConfigLoader):
    """Parses the command line of `jupyter nbgen`, which exits with a message for anything that is no option."""

    def _handle_unrecognized_alias(self, arg: str) -> None:
        names = [*EngineOptions.class_trait_names(config=True), *LifeOptions.class_trait_names(config=True)]
        _refuse(
            arg, {name: f"NbgenApp.{name}" for name in names} | {name: name for name in (*self.aliases, *self.flags)}
        )

    def _convert_to_config(self) -> None:
        super()._convert_to_config()
        if self.extra_args:
            words = "nbgen has options only; a model is named by --model=FOLDER"
            sys.exit(f"{self.extra_args[0]!r} is no option: {words}")
        if isinstance(self.config.IdentityProvider.get("token"), list):  # traitlets' error would show the tokens
            sys.exit("nbgen has one --api-key, and it is given more than once")
