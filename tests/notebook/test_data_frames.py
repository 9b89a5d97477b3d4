"""pandas where it is asked for, and not imported yet."""

import subprocess
import sys

#: Ctrl-C comes when half of it is there.
INTERRUPTED = """
import os, signal, sys
import nbgen

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas._libs.tslibs.nattype":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
try:
    nbgen.map(["a"])
except KeyboardInterrupt:
    import pandas
    print(pandas.DataFrame({"n": [1]})["n"].sum())
"""


def test_pandas_works_after_an_interrupt_while_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], check=False, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
