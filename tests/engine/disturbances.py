"""What may happen to an engine between two steps, and changes no answer."""

from collections.abc import Callable
from typing import Any

from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateOutput

Outputs = list[GenerateOutput]


def _recomputed(assembly: Assembly) -> Outputs:
    assembly.engine.recompute()
    return []


def _flushed(assembly: Assembly) -> Outputs:
    assembly.engine.flush_cache()
    return []


def _paused(assembly: Assembly) -> Outputs:
    outputs = assembly.engine.pause("in_place")
    assembly.engine.resume()
    return outputs


def _retracted(assembly: Assembly) -> Outputs:
    outputs = assembly.engine.pause("retract")
    assembly.engine.resume()
    return outputs


def _withdrawn(assembly: Assembly) -> Outputs:
    return assembly.engine.readmit(assembly.engine.withdraw())


def _moved(assembly: Assembly, *tags: str) -> Outputs:
    """Memory is given back, and taken again, as when the layers of a live model are replaced."""
    withdrawn = assembly.engine.withdraw()
    assembly.occupation.release(set(tags))
    assembly.occupation.resume(set(tags))
    return assembly.engine.readmit(withdrawn)


def _failing(assembly: Assembly, error: Exception, *, late: bool) -> Outputs:
    """The next step fails, before it has computed anything or after; not where somebody would have to end for that."""
    runner, scheduler = assembly.engine._runner, assembly.engine._scheduler

    def fail(*given: Any) -> None:
        del runner.run
        if late:
            runner.run(*given)
        raise error

    if "run" not in vars(runner) and not scheduler.suspects and not scheduler._shortages:
        runner.run = fail  # type: ignore[method-assign, assignment, union-attr]
    return []


def disarm(assembly: Assembly) -> None:
    """No step fails any more for what has happened."""
    vars(assembly.engine._runner).pop("run", None)


DISTURBANCES: dict[str, Callable[[Assembly], Outputs]] = {
    "recomputed": _recomputed,
    "flushed": _flushed,
    "paused": _paused,
    "retracted": _retracted,
    "withdrawn": _withdrawn,
    "without a cache": lambda assembly: _moved(assembly, "kv_cache"),
    "without weights": lambda assembly: _moved(assembly, "kv_cache", "weights"),
    "failing": lambda assembly: _failing(assembly, RuntimeError("of this test"), late=False),
    "failing late": lambda assembly: _failing(assembly, RuntimeError("of this test"), late=True),
    "short of memory": lambda assembly: _failing(assembly, MemoryError(), late=True),
}
