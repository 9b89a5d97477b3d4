"""How many bytes of KV cache an engine has on the device that its model lies on. Knows no blocks."""

import torch
from msgspec.structs import replace

from nbgen.engine import memory
from nbgen.engine_config import EngineConfig


class CacheSize:
    """What one configuration means where the model lies, which may be moved."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._device: torch.device | None = None

    def anew(self, device: torch.device) -> EngineConfig:
        """The configuration with the bytes of KV cache that are free on a CPU now; a GPU's stays open.

        A CPU's memory is taken only as it is written, so the size, and with it the longest prompt, can stay the same
        after each rest. A GPU's is taken at once, and is what is free then.
        """
        self._device, self._sized = device, self._config
        if device.type != "cuda":
            now = memory.kv_cache_budget(device, self._config.kv_cache_bytes)
            self._sized = replace(self._config, kv_cache_bytes=now)
        return self._sized

    def again(self, device: torch.device) -> EngineConfig:
        """The same as last time, unless that was on another device."""
        return self._sized if device == self._device else self.anew(device)
