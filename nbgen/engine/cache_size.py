"""How many bytes of KV cache an engine gets on its model's device. Knows no blocks."""

import torch
from msgspec.structs import replace

from nbgen.engine import memory
from nbgen.engine_config import EngineConfig


class CacheSize:
    """The size that one configuration gives on the model's device, which may change."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._device: torch.device | None = None

    def anew(self, device: torch.device) -> EngineConfig:
        """The configuration with the bytes of KV cache that a CPU has free now; for a GPU it is unchanged.

        A CPU's memory is taken only as it is written, so the size, and with it the longest prompt, can stay the same
        after each idle release. A GPU's is taken at once, so the size depends on what is free then.
        """
        self._device, self._sized = device, self._config
        if device.type != "cuda":
            now = memory.kv_cache_budget(device, self._config.kv_cache_bytes)
            self._sized = replace(self._config, kv_cache_bytes=now)
        return self._sized

    def again(self, device: torch.device) -> EngineConfig:
        """The same configuration as last time, unless that was for another device."""
        return self._sized if device == self._device else self.anew(device)
