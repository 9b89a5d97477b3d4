"""When an idle engine gives its KV cache's memory back, and takes it again. Does not know what is in that memory."""

import logging
import math
import time

from nbgen.engine import memory
from nbgen.engine.endings import NO_CACHE
from nbgen.engine.engine import Engine
from nbgen.engine.occupation import Occupation

#: Idle seconds after which the cache is released already if the machine's memory is short.
SHORT_SECONDS = 60.0

log = logging.getLogger(__name__)


class IdleRelease:
    """Releases an engine's KV cache after `seconds` without a sequence; never if that is None."""

    def __init__(self, engine: Engine, occupation: Occupation, seconds: float | None) -> None:
        self._engine = engine
        self._occupation = occupation
        self._seconds = math.inf if seconds is None else seconds
        self._since = time.monotonic()

    def look(self) -> None:
        """Release the KV cache if the engine has been idle long enough."""
        if self._occupation.released or self._engine.sequences:
            self._since = time.monotonic()
        elif not self._occupation.rests and self._is_due():
            self._occupation.rest()

    def end(self) -> None:
        """Take the memory again for a request that has come; if that fails, the engine refuses requests."""
        self._since = time.monotonic()
        if not self._occupation.rests:
            return
        try:
            self._occupation.wake()
            return
        except Exception:  # others may have filled the memory meanwhile
            log.exception("the KV cache's memory could not be taken again")
            self._engine.vacate(NO_CACHE)
        memory.give_back(self._occupation.device)  # only now: the exception held what had been taken

    def _is_due(self) -> bool:
        idle = time.monotonic() - self._since
        may_be_short = idle >= SHORT_SECONDS and self._seconds < math.inf
        return idle >= self._seconds or (may_be_short and memory.is_short(self._occupation.device))
