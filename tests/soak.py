"""How long tests that look for the unexpected go on: `make soak` has them look many times as long as `make test`."""

import os

#: Times as many examples, or seconds.
TIMES = int(os.environ.get("NBGEN_SOAK", "1"))
