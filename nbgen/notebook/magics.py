"""`%nbgen` and `%%nbgen`: the same helpers as `import nbgen`, as magics.

Options are declared by decorators, which also make the help. Knows nothing of HTTP.
"""

from __future__ import annotations

import keyword
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from IPython.core import inputtransformer2
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments

from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.background import BackgroundRun
from nbgen.notebook.cell_errors import CellErrors
from nbgen.notebook.code_blocks import as_cell, code_blocks
from nbgen.notebook.completion import matcher
from nbgen.notebook.display import Answer, can_change, in_notebook
from nbgen.notebook.magic_line import (
    asks_for_help,
    below_comments,
    help_text,
    parsed,
    plain_help,
    unescaped,
    without_comment,
    without_semicolon,
)
from nbgen.notebook.options import LINES
from nbgen.notebook.repair import SYSTEM, question
from nbgen.notebook.short_traceback import EXPECTED, shortened
from nbgen.notebook.template import fill, in_single_braces
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.tools import Tools
from nbgen.notebook.variables import medium, named, schema, visible_names

#: Each action, and the options that go with it.
ACTIONS: dict[str, tuple[str, ...]] = {
    "status": (),
    "load": ("--quantization",),
    "unload": (),
    "models": (),
    "monitor": (),
    "fix": (),
    "connect": ("--token",),
}
TARGETED = ("load", "fix", "connect")
#: Joins --token and its value by "=": a token may begin with a dash and would be taken for an option.
_TOKEN = re.compile(r"--token\s+(?=\S)")
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "sampling_seed", "stop"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
)


@magics_class
class NbgenMagics(Magics):
    """The magics of nbgen; `register` puts them into a shell."""

    shell: InteractiveShell

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.errors = CellErrors()
        self.matcher = matcher(shell, {"%nbgen": self.manage.parser, "%%nbgen": self.ask.parser}, ACTIONS, self.errors)

    @plain_help
    @magic_arguments("nbgen")
    @argument(
        "action", nargs="?", default="status", help="status (default), load, unload, models, monitor, fix or connect"
    )
    @argument(
        "target",
        nargs="?",
        help="load: a folder or a model's name, {x} for a variable's (none: the last one); connect: a server's URL; "
        "fix: a cell's number",
    )
    @argument(
        "--quantization",
        choices=("int8", "int4", "none"),
        metavar="KIND",
        help="load: int8 or int4 rounds the weights of the linear layers, none leaves them",
    )
    @argument("--token", default="", help="connect: the server's token; it may stand in the URL, too, as ?token=…")
    @line_magic("nbgen")  # type: ignore[arg-type]  # IPython's types know of no name
    def manage(self, line: str) -> Any:
        """Show, load or unload the model, watch it, choose the server, or repair the cell that failed last."""
        line, silent = without_semicolon(self.manage, without_comment(line))
        if asks_for_help(line):
            print(help_text(self.manage))
            return None
        if line.strip() and not line.lstrip().startswith("-"):
            _check_action(line.split()[0])  # before the words of a question are parsed as arguments
        options = parsed(self.manage, _TOKEN.sub("--token=", line))
        _check_action(options.action)
        for action, own in ACTIONS.items():
            for option in own:
                if getattr(options, option.removeprefix("--")) and options.action != action:
                    raise UsageError(f"{option} goes with {action}")
        if options.target and options.action not in TARGETED:
            raise UsageError(f"%nbgen {options.action} {options.target}: {options.action} takes nothing more")
        try:
            value = self._done(options)
        except EXPECTED as error:
            raise _short(error) from None
        return None if silent else value

    @no_var_expand
    @plain_help
    @magic_arguments("%nbgen")
    @argument("--temperature", "-t", type=float, help=LINES["temperature"])
    @argument("--max-new-tokens", type=int, help="the longest answer, in tokens")
    @argument("--top-p", type=float, help=LINES["top_p"])
    @argument("--top-k", type=int, help=LINES["top_k"])
    @argument("--min-p", type=float, help=LINES["min_p"])
    @argument("--seed", dest="sampling_seed", type=int, help=LINES["sampling_seed"])
    @argument(
        "--stop",
        action="append",
        metavar="TEXT",
        type=unescaped,
        help=r'end before this text, in which "\n" is a line break and "\t" a tab; may be given several times',
    )
    @argument("--repetition-penalty", type=float, help=LINES["repetition_penalty"])
    @argument("--frequency-penalty", type=float, help=LINES["frequency_penalty"])
    @argument("--presence-penalty", type=float, help=LINES["presence_penalty"])
    @argument("--system", help="the system prompt, in which {{...}} is filled in, too")
    @argument("--adapter", default="", metavar="NAME", help=LINES["adapter"])
    @argument(
        "--schema",
        metavar="NAME",
        help="the answer's type: a class or dict by its name (a.B, too), bool …, or a .json file",
    )
    @argument(
        "--image", action="append", metavar="NAME", help="an image for the model: a variable or a file; may be repeated"
    )
    @argument("--audio", action="append", metavar="NAME", help="the same of a sound")
    @argument("--video", action="append", metavar="NAME", help="the same of a video")
    @argument(
        "--tool", action="append", metavar="NAME", help="a function that the model may want called; may be repeated"
    )
    @argument("--out", metavar="NAME", help="put the result into this variable, too (it is always in _)")
    @argument("--to-cell", action="store_true", help="put the answer's code into a new cell below")
    @argument("--background", action="store_true", help="let the kernel go on; _ can be cancelled and awaited")
    @argument("--raw", action="store_true", help="leave {{...}} as it is")
    @argument("--complete", action="store_true", help="continue the text as it stands, without the chat template")
    @cell_magic("nbgen")  # type: ignore[arg-type]
    def ask(self, line: str, cell: str) -> None:
        """Send the cell to the model and stream the answer. {{expression}} puts in a value.

        So do {{In[3]}}, {{Out[3]}} and {{Err[3]}}: a cell's source, its value, and the error that it ended with.
        Ctrl-C ends the answer and keeps what has come.
        """
        line, _ = without_semicolon(self.ask, without_comment(line))
        if asks_for_help(line):
            print(help_text(self.ask))
            return
        if not cell.strip():
            raise UsageError("%%nbgen: what is asked goes into the lines below this one")
        options = parsed(self.ask, line)
        if options.out and (not options.out.isidentifier() or keyword.iskeyword(options.out)):
            raise UsageError(f"--out {options.out}: not a variable's name")
        for name in ("to_cell", "tool"):
            if options.background and getattr(options, name):
                raise UsageError(f"--{name.replace('_', '-')} needs whole answers: it does not go with --background")
        try:
            self._ask(options, cell)
        except EXPECTED as error:
            raise _short(error) from None

    def _ask(self, options: Namespace, cell: str) -> None:
        names = visible_names(self.shell)
        own = names.keys() - self.shell.user_ns_hidden.keys()
        prompt, system = cell.removesuffix("\n"), options.system or ""
        if not options.raw:
            if single := in_single_braces(cell, own):
                print(f"{{{single}}} is sent as it stands: {{{{{single}}}}}, in two braces, puts in its value.")
            prompt, system = self._filled(prompt, names), self._filled(system, names)
        sampling = {name: getattr(options, name) for name in SAMPLING if getattr(options, name) is not None}
        kind = schema(options.schema, names, own) if options.schema else None
        media = {
            parameter: [medium(option, name, names) for name in getattr(options, option) or ()]
            for parameter, option in (("images", "image"), ("audio", "audio"), ("videos", "video"))
        }
        tools = Tools([named("tool", name, names, own) for name in options.tool or ()])
        asked = {"complete": options.complete, "system": system, **media}
        later = {"schema": kind, "tools": tools, "adapter": options.adapter, **sampling}
        answer = first = session.stream(prompt, **asked, **later)
        if options.background:
            self._keep(_in_background(answer), options.out)
            return
        try:
            for answer in tools.rounds(first, lambda before, told: session.stream([*before.turns, *told], **later)):
                show(answer)
        finally:
            self._keep(answer.result, options.out)
        if options.to_cell and answer.result.text:
            self.shell.set_next_input(as_cell(answer.result.text), replace=False)

    def _filled(self, prompt: str, names: Mapping[str, Any]) -> str:
        try:
            return fill(prompt, {"Err": self.errors, **names})
        except InvalidRequest as error:
            raise InvalidRequest(f"{error} Nothing was sent; --raw leaves braces as they are.") from None

    def _keep(self, value: Any, name: str | None) -> None:
        """Store the value as `_`, `Out[n]` and under `name`, without displaying it a second time."""
        self.shell.displayhook.update_user_ns(value)
        if name:
            self.shell.user_ns[name] = value

    def _done(self, options: Namespace) -> Any:
        if options.action == "load":
            return session.load(options.target, options.quantization)
        if options.action == "connect":
            return self._connect(options.target, options.token)
        return getattr(self, f"_{options.action}")(options.target)

    def _status(self, _: str | None) -> Any:
        return session.status()

    def _unload(self, _: str | None) -> Any:
        return session.unload()

    def _models(self, _: str | None) -> Any:
        return session.models()

    def _monitor(self, _: str | None) -> Any:
        from nbgen.notebook.monitor import monitor

        return monitor() if in_notebook() else session.status()

    def _connect(self, url: str | None, token: str) -> Any:
        if not url:
            raise UsageError("%nbgen connect needs the server's URL")
        session.connect(url, token)
        return session.status()

    def _fix(self, number: str | None) -> None:
        """Show the model's advice, and put its code into the next cell."""
        if number and not number.isdecimal():
            raise UsageError(f"%nbgen fix {number}: not the number of a cell")
        try:
            failed = self.errors.last(int(number) if number else None)
        except KeyError as error:
            raise UsageError(f"%nbgen fix: {error.args[0]}") from None
        answer = session.stream(question(failed), system=SYSTEM, temperature=0)
        try:
            show(answer)
        finally:
            self._keep(answer.result, None)
        if code := code_blocks(answer.result.text):
            self.shell.set_next_input(code[-1], replace=False)


def show(answer: TextStream) -> None:
    """Stream an answer into the cell's output. Ctrl-C ends it on the server; the text so far stays in the output."""
    shown = Answer(table=answer.result.schema is not None)
    try:
        for text in answer:
            shown.update(answer.result, text)
    finally:
        answer.close()
        shown.finish(answer.result)


def _in_background(answer: TextStream) -> BackgroundRun:
    """Run the answer in the background. A terminal shows nothing of it, as it is back at its prompt."""
    if not can_change():
        return BackgroundRun(answer, lambda result, text: None, lambda result, error: None)
    shown = Answer(table=answer.result.schema is not None)
    shown.begin()
    return BackgroundRun(answer, shown.update, shown.finish)


def register(shell: Any) -> None:
    """Add the magics and their completion to `shell`; a second call changes nothing."""
    if "NbgenMagics" in shell.magics_manager.registry:
        return
    magics = NbgenMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.insert(0, one_line)
    shell.events.register("post_run_cell", magics.errors.record)
    shell.Completer.custom_matchers.append(magics.matcher)


def unregister(shell: Any) -> None:
    """Take away what `register` added."""
    manager = shell.magics_manager
    magics = manager.registry.pop("NbgenMagics", None)
    if magics is not None:
        shell.events.unregister("post_run_cell", magics.errors.record)
        shell.input_transformers_cleanup.remove(one_line)
        shell.Completer.custom_matchers.remove(magics.matcher)
    for kind in ("line", "cell"):
        manager.magics[kind].pop("nbgen", None)


def one_line(lines: list[str]) -> list[str]:
    """An input transformer, before IPython looks for magics.

    `%%nbgen` may stand below comments, below which IPython knows no cell magic. Alone it gets a body, without which
    IPython calls none. It is called here: from code, IPython takes away what looks like a prompt (`>>>`, `In [1]:`),
    but this is a question. A question after a lone `%nbgen` loses its question mark, which IPython would take as a
    request for help.
    """
    first, *rest = below_comments("".join(lines)).splitlines(keepends=True) or [""]
    words, alone = first.split(), not "".join(rest).strip()
    if words[:1] == ["%%nbgen"]:
        cell = inputtransformer2.leading_indent([first.rstrip("\n") + "\n", *(["\n"] if alone else rest)])
        return list(inputtransformer2.cell_magic(cell))
    asked = alone and words[:1] == ["%nbgen"] and len(words) > 1 and words[1].rstrip("?") not in ("", *ACTIONS)
    return [first.rstrip("? \n") + "\n"] if asked else lines


#: IPython then skips it to decide if a cell is complete; else a terminal would take the first line for the whole cell.
one_line.has_side_effects = True  # type: ignore[attr-defined]


def _check_action(action: str) -> None:
    if action not in ACTIONS:
        known = f"choose from {', '.join(ACTIONS)}"
        raise UsageError(f"%nbgen {action}: unknown; {known}. A question goes into a cell that begins with %%nbgen")


def _short(error: BaseException) -> BaseException:
    """A UsageError for what the user wrote wrong; any other error with its traceback shortened to one line."""
    return UsageError(str(error)) if isinstance(error, InvalidRequest) else shortened(error)
