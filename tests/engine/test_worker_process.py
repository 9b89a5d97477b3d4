"""A process for hostile work ends with its owner, in whatever order the garbage collector comes to the two."""

import gc

import psutil

from nbgen.engine.worker_process import WorkerProcess


def test_it_ends_when_its_owner_is_gone() -> None:
    worker = WorkerProcess("nbgen.engine.media_worker", str(2**30))
    worker.start()
    process, owner = worker._process, list[object]([worker])
    assert process is not None
    del worker
    gc.collect()  # the worker, found through its owner alone, now stands behind its process in the collector's list
    owner.append(owner)
    pid = process.pid
    del process, owner
    gc.collect()  # a process that is not waited for, and a pipe that is not closed, warn
    assert not psutil.pid_exists(pid)
