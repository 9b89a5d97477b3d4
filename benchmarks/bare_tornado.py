"""A server that does nothing but write events: what Tornado itself takes for a token, where no engine limits it.

`python -m benchmarks.bare_tornado PORT`. A process of its own says every few milliseconds that a step is over, as an
engine would, and each stream that is open then gets an event of the size of nbgen's.
"""

import asyncio
import subprocess
import sys
from typing import Any

from tornado import web

from benchmarks.server import NEW_TOKENS

STEP_SECONDS = 0.004
EVENT = b'data: {"choices":[{"finish_reason":null}],"id":"%s"}\n\n' % (b"0" * 200)
END = b"data: [DONE]\n\n"
CLOCK = f"import sys, time\nwhile sys.stdout.write('.') and not sys.stdout.flush(): time.sleep({STEP_SECONDS})"


class Completions(web.RequestHandler):
    """One stream: an event a step, as many as other servers make."""

    def initialize(self, streams: set["Completions"]) -> None:
        self.streams = streams

    async def post(self) -> None:
        self.left, self.over = NEW_TOKENS, asyncio.get_running_loop().create_future()
        self.streams.add(self)
        await self.over
        self.finish(END)

    def step(self) -> None:
        self.write(EVENT)
        self.flush()
        self.left -= 1
        if not self.left:
            self.streams.discard(self)
            self.over.set_result(None)


async def serve(port: int, clock: Any) -> None:
    streams: set[Completions] = set()

    def step() -> None:
        clock.read1()
        for stream in tuple(streams):
            stream.step()

    asyncio.get_running_loop().add_reader(clock, step)
    web.Application([("/v1/completions", Completions, {"streams": streams})]).listen(port, "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    ticking = subprocess.Popen([sys.executable, "-c", CLOCK], stdout=subprocess.PIPE)
    asyncio.run(serve(int(sys.argv[1]), ticking.stdout))
