"""Grammars on their way from a request to a matcher: checked and compiled in another process, then cached.

Nothing here delays a step: whoever submits a grammar gets a future. Knows neither sequences nor scores.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from nbgen.engine.grammar import LABELS, Backend, Compiled, Grammar, GrammarError, refusal
from nbgen.engine.grammar_worker import Answer, Start
from nbgen.engine.worker_process import Halted, WorkerProcess
from nbgen.errors import NbgenError, Unavailable

#: With a vocabulary of 150,000 tokens, a string of at least 100 characters takes two seconds of one processor.
COMPILE_SECONDS = 10.0
CACHE_BYTES = 256 * 2**20
#: What a cached grammar takes besides what its back end counts.
ENTRY_BYTES = 4096
WORKERS = 2

log = logging.getLogger(__name__)


class GrammarCompiler:
    """Compiles for one loaded model. Each grammar is compiled once; a refusal is cached, too."""

    def __init__(self, name: str, make_backend: Callable[[], Backend], *, seconds: float = COMPILE_SECONDS) -> None:
        """`make_backend` is called at the first grammar: a model that never sees one pays nothing."""
        self._name = name
        self._make_backend = make_backend
        self._seconds = seconds
        self._backend: Backend | None = None
        self._starting = threading.Lock()
        self._lock = threading.RLock()  # reentrant: a future that is done calls back at once
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="grammar")
        self._workers = threading.local()
        self._processes: list[CompilerProcess] = []
        self._cache: OrderedDict[Grammar, Future[Compiled]] = OrderedDict()
        #: For each grammar that is not begun: functions that say whether its senders still wait.
        self._wanted: dict[Grammar, list[Callable[[], bool]]] = {}
        self._sizes: dict[Grammar, int] = {}
        self.num_bytes = 0

    def submit(self, grammar: Grammar, wanted: Callable[[], bool] = lambda: True) -> Future[Compiled]:
        """A future of the compiled grammar, done already if it is cached. The future raises InvalidRequest.

        A grammar that no caller wants any more when its turn comes is not compiled: the future raises Unavailable.
        """
        with self._lock:
            if (future := self._cache.get(grammar)) is None:
                self._wanted[grammar] = []
                future = self._cache[grammar] = self._pool.submit(self._compiled, grammar)
                future.add_done_callback(lambda done: self._remember(grammar, done))
            if grammar in self._wanted:
                self._wanted[grammar].append(wanted)
            self._cache.move_to_end(grammar)
        return future

    def close(self) -> None:
        """End the processes once nothing is being compiled."""
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:  # a refused grammar's exception can keep them alive
            process.kill()

    def _compiled(self, grammar: Grammar) -> Compiled:
        label = LABELS[grammar.kind]
        self._check_wanted(grammar)
        try:
            worker = self._worker()
            backend = self._loaded_backend()
            return backend.load(worker.compile(backend, grammar))
        except GrammarError as error:
            raise refusal(grammar.kind, error) from None
        except NbgenError:
            raise
        except MemoryError:
            raise Unavailable(f"no memory is left for this {label} grammar; free some, or ask again later") from None
        except Exception:  # whatever a back end raises is this grammar's alone
            log.exception("a %s grammar failed", label)
            raise refusal(grammar.kind, "it is not valid") from None

    def _loaded_backend(self) -> Backend:
        """Raises Unavailable if it cannot be imported or does not take the tokenizer, which is no grammar's fault."""
        with self._starting:
            try:
                self._backend = self._backend or self._make_backend()
            except Exception as error:  # whatever its libraries raise
                log.exception("the grammar back end %s cannot be loaded", self._name)
                words = f"the grammar back end {self._name} cannot be loaded here; the server's log says why"
                raise Unavailable(f"{words}. grammar_backend names another one") from error
            return self._backend

    def _check_wanted(self, grammar: Grammar) -> None:
        """Begin a grammar whose turn has come. Raises Unavailable if nobody waits for it."""
        with self._lock:
            if not any(wanted() for wanted in self._wanted.pop(grammar)):
                del self._cache[grammar]
                raise Unavailable("nobody waits for this grammar any more")

    def _worker(self) -> "CompilerProcess":
        """This thread's own process, started if need be."""
        if not hasattr(self._workers, "process"):
            self._workers.process = CompilerProcess(self._name, self._seconds)
            self._processes.append(self._workers.process)
        self._workers.process.start()
        return self._workers.process

    def _remember(self, grammar: Grammar, done: "Future[Compiled]") -> None:
        """Count the size of a cached grammar, and drop the least recently used ones."""
        error = None if done.cancelled() else done.exception()
        with self._lock:
            if done.cancelled() or isinstance(error, Unavailable):
                if self._cache.get(grammar) is done:  # not the entry of a later request
                    del self._cache[grammar]
                return
            size = ENTRY_BYTES + len(grammar.text) + (0 if error else done.result().num_bytes)
            self._sizes[grammar] = size
            self.num_bytes += size
            while self.num_bytes > CACHE_BYTES:
                oldest = next(known for known in self._cache if known in self._sizes)
                del self._cache[oldest]
                self.num_bytes -= self._sizes.pop(oldest)


class CompilerProcess:
    """A process that compiles, started when it is first needed and again after it had to be killed."""

    def __init__(self, name: str, seconds: float) -> None:
        self._process = WorkerProcess("nbgen.engine.grammar_worker", name)
        self._seconds = seconds

    def start(self) -> None:
        """Let the process import its back end, unless it runs already."""
        self._process.start()

    def kill(self) -> None:
        """End the process."""
        self._process.kill()

    def compile(self, backend: Backend, grammar: Grammar) -> bytes:
        """Raises GrammarError also if the process takes too long or too much memory, or ends.

        If that was not the grammar's fault, it tries once more, and then raises Unavailable.
        """
        self._begin(backend)
        try:
            return self._ask(grammar)
        except Halted as error:
            log.warning("a %s grammar is compiled once more: %s", LABELS[grammar.kind], error.message)
            self._begin(backend)
            return self._ask(grammar)

    def _begin(self, backend: Backend) -> None:
        if not self._process.begun:
            self._process.begin(Start(vocabulary=backend.vocabulary))

    def _ask(self, grammar: Grammar) -> bytes:
        try:
            answer = self._process.ask(grammar, Answer, self._seconds)
        except TimeoutError:
            raise GrammarError(f"it takes longer than {self._seconds:g} s to compile: make it simpler") from None
        except EOFError:
            raise GrammarError("it takes too much memory, or is too deep, to compile: make it simpler") from None
        if answer.compiled is None:
            raise GrammarError(answer.error or "it is not valid", answer.field)
        return answer.compiled
