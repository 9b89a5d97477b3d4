"""`%nbgen` and `%%nbgen`: the same helpers as `import nbgen`, as magics.

Options are declared by decorators, which also make the help. Knows nothing of HTTP.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from nbgen.errors import InvalidRequest, NbgenError
from nbgen.notebook import session
from nbgen.notebook.display import Answer
from nbgen.notebook.result import Result
from nbgen.notebook.status import Status
from nbgen.notebook.template import fill

ACTIONS = ("status", "load", "unload", "connect")
SAMPLING = ("temperature", "top_p", "max_new_tokens", "sampling_seed")


@magics_class
class NbgenMagics(Magics):
    """The magics of nbgen; `register` puts them into a shell."""

    @no_var_expand
    @magic_arguments("nbgen")
    @argument("action", nargs="?", default="status", help="status (default), load, unload or connect")
    @argument("target", nargs="?", help="load: a folder or a model's name; connect: a server's URL")
    @line_magic("nbgen")
    def manage(self, line: str) -> Status | None:
        """Show, load or unload the model, or choose the server."""
        options = _parse(self.manage, line)
        if options.action not in ACTIONS:
            raise UsageError(f"%nbgen {options.action}: unknown; choose from {', '.join(ACTIONS)}")
        if options.action == "connect" and not options.target:
            raise UsageError("%nbgen connect needs the server's URL")
        try:
            return _act(options)
        except NbgenError as error:
            raise _short(error) from None

    @no_var_expand
    @magic_arguments("%nbgen")
    @argument("--temperature", "-t", type=float, help="0 always takes the likeliest token; higher is more varied")
    @argument("--max-new-tokens", type=int, help="the longest answer, in tokens")
    @argument("--top-p", type=float, help="sample from the likeliest tokens that make up this probability")
    @argument("--seed", dest="sampling_seed", type=int, help="the same seed gives the same answer")
    @argument("--system", help="the system prompt")
    @argument("--out", metavar="NAME", help="put the result into this variable, too (it is always in _)")
    @argument("--raw", action="store_true", help="leave {{...}} as it is")
    @argument("--complete", action="store_true", help="continue the text as it stands, without the chat template")
    @cell_magic("nbgen")
    def ask(self, line: str, cell: str) -> None:
        """Send the cell to the model and stream the answer. {{expression}} puts in a value."""
        options = _parse(self.ask, line)
        if options.out and not options.out.isidentifier():
            raise UsageError(f"--out {options.out}: not a variable's name")
        try:
            self._ask(options, cell)
        except NbgenError as error:
            raise _short(error) from None

    def _ask(self, options: Namespace, cell: str) -> None:
        prompt = cell.removesuffix("\n")
        prompt = prompt if options.raw else fill(prompt, self.shell.user_ns)
        sampling = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
        answer = session.stream(prompt, complete=options.complete, system=options.system, **sampling)
        shown = Answer()
        try:
            for text in answer:
                shown.update(answer.result.text, text)
        except KeyboardInterrupt:
            pass
        finally:
            answer.close()
            failed = answer.result.finish_reason == "error"
            shown.finish(answer.result.text, "" if failed else answer.result.caption)
            self._keep(answer.result, options.out)

    def _keep(self, result: Result, name: str | None) -> None:
        """As `_` and `Out[n]`, without being displayed a second time."""
        self.shell.displayhook.update_user_ns(result)
        if name:
            self.shell.user_ns[name] = result


def register(shell: Any) -> None:
    """Add the magics and their completion to `shell`; a second time changes nothing."""
    if "NbgenMagics" in shell.magics_manager.registry:
        return
    shell.register_magics(NbgenMagics)
    for key in ("%nbgen", "%%nbgen"):
        shell.set_hook("complete_command", complete, str_key=key)


def unregister(shell: Any) -> None:
    """Take away what `register` added."""
    manager = shell.magics_manager
    manager.registry.pop("NbgenMagics", None)
    for kind in ("line", "cell"):
        manager.magics[kind].pop("nbgen", None)
    hooks = shell.strdispatchers.get("complete_command")
    for key in ("%nbgen", "%%nbgen"):
        if hooks is not None:
            hooks.strs.pop(key, None)


def complete(shell: Any, event: Any) -> list[str]:
    """What may stand where the cursor is, of the first line of a magic."""
    if not event.line.startswith("%%"):
        return [action for action in ACTIONS if action.startswith(event.symbol)]
    parser = NbgenMagics.ask.parser
    return [option for option in sorted(parser._option_string_actions) if option.startswith(event.symbol or "--")]


def _parse(magic: Any, line: str) -> Namespace:
    """As IPython's own, but quotes around a value are not part of it."""
    try:
        return magic.parser.parse_args(shlex.split(line))
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from None


def _act(options: Namespace) -> Status | None:
    if options.action == "load":
        return session.load(options.target)
    if options.action == "unload":
        return session.unload()
    if options.action == "connect":
        session.connect(options.target)
    return session.status()


def _short(error: NbgenError) -> Exception:
    """The error in one line: where in nbgen it arose helps nobody who wrote a prompt."""
    if isinstance(error, InvalidRequest):
        return UsageError(str(error))
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]
    return error
