"""`python -m nbgen` and `jupyter nbgen`: the server standing alone. Knows only how it starts sooner."""

import sys

from nbgen.server import engine_child

#: As the first argument: the server will load a model at once.
LOADS = "loads"

#: jsonschema imports it, where it is installed, to check a format (IRIs) that no schema of this server names. The
#: import reads a grammar, and would take most of the server's start.
UNUSED = "rfc3987_syntax"


def main() -> None:
    """Run the server until it is told to stop, with the options of the command line."""
    if sys.argv[1:2] == [LOADS]:
        del sys.argv[1]
        engine_child.begin_early()
    sys.modules[UNUSED] = None  # type: ignore[assignment]  # an import of it fails, as where it is not installed
    from nbgen.server import app

    del sys.modules[UNUSED]
    app.main()


if __name__ == "__main__":
    main()
