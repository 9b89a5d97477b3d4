"""`python -m nbgen`: the server standing alone, as `jupyter nbgen` starts it."""

from nbgen.server.app import main

if __name__ == "__main__":
    main()
