"""SGLang's routes that give the engine's memory to others and take it again."""

from __future__ import annotations

from nbgen.commands import ReleaseMemory, ResumeMemory
from nbgen.protocols.sglang_memory import parse_tags
from nbgen.server.sglang_handlers import SglangHandler


class ReleaseMemoryHandler(SglangHandler):
    """Gives up the memory that `tags` name. Running requests end with an error, later ones are refused."""

    async def post(self) -> None:
        await self.engine.change_memory(ReleaseMemory, parse_tags(self.body))
        self.finish(b"null")


class ResumeMemoryHandler(SglangHandler):
    """Takes the memory that `tags` name again. Answers when requests may come."""

    async def post(self) -> None:
        await self.engine.change_memory(ResumeMemory, parse_tags(self.body))
        self.finish(b"null")


HANDLERS = [
    (r"release_memory_occupation", ReleaseMemoryHandler),
    (r"resume_memory_occupation", ResumeMemoryHandler),
]
