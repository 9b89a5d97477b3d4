"""The tensors behind the blocks: keys and values of every layer, one slot a token.

Layers are sized from the first keys and values that arrive, because head counts and widths may differ from layer to
layer. Knows neither sequences nor who owns a block.
"""

import math
import mmap

import torch


class KVCache:
    """Per layer, keys `[slots, kv_heads, head_dim]` and values `[slots, kv_heads, value_dim]`.

    Block `b` holds slots `b * block_size` to `(b + 1) * block_size - 1`. On the CPU a head's slots are adjacent in
    memory (the tensors are views of head-major ones); elsewhere a slot's heads are adjacent. One extra block follows
    the last and belongs to no sequence: `scratch_block` takes the tokens of rows that only pad a batch.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        #: What keys and values are rounded to; None: they are kept as they come.
        self.dtype: torch.dtype | None = None
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._shapes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where the layers seen so far are."""
        return next(iter(self._shapes.values()))[0].device

    @property
    def scratch_block(self) -> int:
        return self.num_blocks

    def write(
        self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new tokens' keys and values `[tokens, kv_heads, dim]` in `slots`; returns the layer's whole tensors."""
        keys, values = self._layers.get(layer) or self._allocate(layer, key, value)
        keys.index_copy_(0, slots, key.to(keys.dtype))
        values.index_copy_(0, slots, value.to(values.dtype))
        return keys, values

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The layer's whole tensors: the same tuple until they are reallocated. None before its first write."""
        return self._layers.get(layer)

    def keep_in(self, dtype: torch.dtype | None) -> None:
        """Round keys and values to this type from the next `resize` on. None changes nothing."""
        self.dtype = dtype
        for layer, (keys, values) in self._shapes.items():
            self._shapes[layer] = keys.to(dtype or keys.dtype), values.to(dtype or values.dtype)

    def resize(self, num_blocks: int) -> None:
        """Forget all keys and values, and allocate `num_blocks` blocks for each layer seen so far; 0 frees all."""
        self._layers.clear()
        self.num_blocks = num_blocks
        for layer, pair in list(self._shapes.items()) if num_blocks else ():
            self._allocate(layer, *pair)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` tokens of block `source` to block `target`, in every layer."""
        start, end = source * self.block_size, target * self.block_size
        for pair in self._layers.values():
            for tensor in pair:
                tensor[end : end + num_tokens] = tensor[start : start + num_tokens]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all layers seen so far, whether or not memory is allocated now."""
        tensors = [tensor for pair in self._shapes.values() for tensor in pair]
        return sum(math.prod(t.shape[1:]) * t.element_size() for t in tensors) * self.block_size

    def _allocate(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        slots = (self.num_blocks + 1) * self.block_size
        likes = [tensor.new_empty(0, *tensor.shape[1:], dtype=self.dtype) for tensor in (key, value)]
        self._shapes[layer] = (likes[0], likes[1])
        self._layers[layer] = (_zeros(slots, likes[0]), _zeros(slots, likes[1]))
        return self._layers[layer]


def _zeros(slots: int, like: torch.Tensor) -> torch.Tensor:
    """`[slots, heads, dim]` of zeros: unwritten slots may be read too, and are masked.

    On the CPU the zeros come from the operating system, so that memory is taken only when written, in small pages: a
    huge page for every head of every layer would be most of a gigabyte. A private mapping costs less than a shared one.
    """
    _, heads, dim = like.shape
    if like.device.type != "cpu":
        return like.new_zeros(slots, heads, dim)
    size = slots * heads * dim * like.element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype).view(heads, slots, dim).transpose(0, 1)
