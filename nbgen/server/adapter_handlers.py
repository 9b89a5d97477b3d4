"""SGLang's routes that load and unload LoRA adapters while requests are served. Does not know what is loaded."""

from __future__ import annotations

from nbgen.errors import InvalidRequest
from nbgen.protocols import sglang_adapters
from nbgen.protocols.sglang import SchemaError
from nbgen.server.generation_handler import ModelNeededHandler
from nbgen.server.sglang_handlers import SglangHandler


class AdapterHandler(SglangHandler, ModelNeededHandler):
    """Answers with the adapters that are then loaded. Loads the model first if need be: its layers decide what fits."""

    async def post(self) -> None:
        error = None
        try:
            await self.change()
        except SchemaError:
            raise
        except InvalidRequest as refused:
            error = refused.message
        self.set_status(400 if error else 200)
        self.finish(sglang_adapters.answer(self.engine.adapters.loaded, error))

    async def change(self) -> None:
        """Do what the body asks. Raises InvalidRequest."""
        raise NotImplementedError


class LoadAdapterHandler(AdapterHandler):
    """Reads an adapter from a folder on the server's machine."""

    async def change(self) -> None:
        loading = sglang_adapters.parse_load(self.body)
        await self.engine.load_adapter(loading.name, loading.folder)


class UnloadAdapterHandler(AdapterHandler):
    """Answers when the last request that uses the adapter has ended."""

    async def change(self) -> None:
        await self.engine.unload_adapter(sglang_adapters.parse_unload(self.body))


HANDLERS = [
    (r"load_lora_adapter", LoadAdapterHandler),
    (r"unload_lora_adapter", UnloadAdapterHandler),
]
