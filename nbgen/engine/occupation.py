"""Releases the device memory that an engine holds, and takes it again, on demand.

The KV cache is released with all cached prefixes and its CUDA graphs. Weights are released too if that is asked, and
later read from the checkpoint again, which may still be in the system's page cache. Knows no messages.
"""

from collections.abc import Callable

from nbgen.commands import MemoryTag
from nbgen.engine import memory
from nbgen.engine.admission import Admission
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.endings import CLOSED
from nbgen.engine.engine import Engine
from nbgen.engine.probe import Runner
from nbgen.engine.scheduler import Scheduler
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateOutput


class Occupation:
    """The device memory of one engine.

    `load` makes a new runner. `provide` gives a runner its cache and makes a scheduler; after a rest `restore` does so.
    """

    def __init__(
        self,
        engine: Engine,
        admission: Admission,
        runner: Runner,
        load: Callable[[], Runner],
        provide: Callable[[Runner], Scheduler],
        restore: Callable[[Runner], Scheduler],
    ) -> None:
        self.released: set[MemoryTag] = set()
        #: Whether the KV cache's memory is given back until the next request.
        self.rests = False
        #: The device of the model, or the one that it had before its weights were released.
        self.device = runner.device
        self._engine = engine
        self._admission = admission
        self._runner: Runner | None = runner
        self._load = load
        self._provide = provide
        self._restore = restore

    def release(self, tags: set[MemoryTag]) -> list[GenerateOutput]:
        """Release what `tags` name. Live requests end with an error; returns these outputs. Raises InvalidRequest."""
        if "kv_cache" not in tags | self.released:
            raise InvalidRequest("the weights cannot be released alone: name kv_cache as well", field="tags")
        outputs = self._engine.vacate(CLOSED)
        self._engine.attach(None, Scheduler(BlockManager(0, 1), max_running=0, prefill_chunk=None))
        if self._runner is not None:
            self._runner.vacate()
        if "weights" in tags:
            self._runner = None
        self.released |= tags
        self.rests = False
        memory.give_back(self.device)
        return outputs

    def resume(self, tags: set[MemoryTag]) -> None:
        """Take back what is released and named in `tags`. Requests are served again once nothing is released.

        Raises InvalidRequest for a cache without weights, and ModelError if the memory is no longer there: then
        whatever is still released holds no memory.
        """
        wanted = tags & self.released
        if "weights" in self.released - wanted and wanted:
            raise InvalidRequest(
                "the KV cache cannot be resumed before the weights: name weights as well", field="tags"
            )
        try:
            if "weights" in wanted:
                self._runner = self._load()
                self.device = self._runner.device
                self.released.discard("weights")
            if "kv_cache" in wanted:
                self._take_cache(self._provide)
                self.released.discard("kv_cache")
        finally:
            if "kv_cache" in wanted & self.released and self._runner is not None:
                self._runner.vacate()

    def rest(self) -> None:
        """Give the KV cache's memory back until `wake`. No sequence may be alive, and nothing may be released."""
        assert self._runner is not None
        self._engine.flush_cache()
        self._runner.vacate()
        self.rests = True
        memory.give_back(self.device)

    def wake(self) -> None:
        """Take the KV cache's memory again. Raises any error of that, such as ModelError; then it holds none of it."""
        assert self._runner is not None
        try:
            self._take_cache(self._restore)
            self.rests = False
        finally:
            if self.rests:
                self._runner.vacate()

    def _take_cache(self, provide: Callable[[Runner], Scheduler]) -> None:
        assert self._runner is not None
        scheduler = provide(self._runner)
        self._admission.resize(scheduler.blocks.num_blocks * scheduler.blocks.block_size)
        self._engine.attach(self._runner, scheduler)
