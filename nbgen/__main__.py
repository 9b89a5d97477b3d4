"""`python -m nbgen` and `jupyter nbgen`: the server standing alone. Knows only how it starts sooner."""

import sys

from nbgen.server import engine_child

#: How options begin with which no engine is started at once, or one that has to import something else.
NO_LOAD = (
    *("-h", "--help", "--version", "--show-config", "--generate-config"),
    *("--NbgenApp.autoload", "--NbgenApp.engine_socket", "--NbgenApp.compile", "--enable-torch-compile"),
)

#: jsonschema imports it, where it is installed, to check a format (IRIs) that no schema of this server names. The
#: import reads a grammar, and would take most of the server's start.
UNUSED = "rfc3987_syntax"


def main() -> None:
    """Run the server until it is told to stop, with the options of the command line."""
    if not any(argument.startswith(NO_LOAD) for argument in sys.argv[1:]):
        engine_child.begin_early()  # if a file of the configuration says otherwise, the server ends it
    sys.modules[UNUSED] = None  # type: ignore[assignment]  # an import of it fails, as where it is not installed
    from nbgen.server import app

    del sys.modules[UNUSED]
    app.main()


if __name__ == "__main__":
    main()
