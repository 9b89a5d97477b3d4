"""What an engine holds of its device's memory, given back and taken again on demand.

The KV cache goes with all cached prefixes and the graphs over it; the weights go as well where that is asked, and are
read from the checkpoint again, which the system still has in its page cache if there was room. Knows no messages.
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
    """One engine's hold on its device.

    `load` makes a runner anew, `provide` gives one its cache and a scheduler, and so does `restore` after a rest.
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
        #: Whether the KV cache's memory is away until the next request.
        self.rests = False
        #: That the model lies on, or lay on before its weights were released.
        self.device = runner.device
        self._engine = engine
        self._admission = admission
        self._runner: Runner | None = runner
        self._load = load
        self._provide = provide
        self._restore = restore

    def release(self, tags: set[MemoryTag]) -> list[GenerateOutput]:
        """Give up what `tags` name. Requests alive end with an error: their last outputs. Raises InvalidRequest."""
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
        """Take back what `tags` name of what is released; requests are served again once all of it is.

        Raises InvalidRequest for a cache without weights, and ModelError where the memory is not there any more: what
        is still released then holds none of it.
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
        """Give the KV cache's memory back until `wake`. No sequence may be alive, and nothing be released."""
        assert self._runner is not None
        self._engine.flush_cache()
        self._runner.vacate()
        self.rests = True
        memory.give_back(self.device)

    def wake(self) -> None:
        """Take it again. Raises what keeps it from that, such as ModelError; then none of it is held."""
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
