"""The process that compiles grammars, with little memory."""

from nbgen.engine import grammar_worker

if __name__ == "__main__":
    grammar_worker.MAX_BYTES = 2**24
    grammar_worker.main()
