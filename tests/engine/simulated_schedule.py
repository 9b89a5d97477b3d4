"""A scheduler with a cache of tokens in place of keys, which knows at every step what each sequence must see."""

from nbgen.engine.block_manager import BlockManager, Copy, StateCopy
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.guess import Guess
from nbgen.engine.prefix_cache import Namespace, Node, PrefixCache
from nbgen.engine.scheduler import ScheduledSequence, Scheduler
from nbgen.engine.sequence import Sequence
from nbgen.engine.stateful_blocks import StatefulBlocks
from nbgen.sampling_params import SamplingParams

BLOCK = 4


def sequence(prompt: list[int] | int, output: int = 1, namespace: str = "", priority: int = 0) -> Sequence:
    nothing = Detokenizer(lambda _: "", lambda _: False, [])
    ids = [1] * prompt if isinstance(prompt, int) else list(prompt)
    s = Sequence("r", 0, ids, SamplingParams(), output, 0, nothing, StopStrings(()))
    s.namespace, s.priority = Namespace((namespace,)), priority
    return s


def cached_nodes(cache: PrefixCache) -> list[Node]:
    found, todo = [], list(cache._roots.values())
    while todo:
        children = list(todo.pop().children.values())
        found += children
        todo += children
    return found


def spelled(node: Node) -> tuple[int, ...]:
    """The tokens from the root to the node's end."""
    return () if node.parent is None else spelled(node.parent) + node.tokens


class Machine:
    """A scheduler with a cache of tokens in place of keys: a slot holds all that its token was computed after.

    With `snapshots` there are states as well, which hold all that they have been through. Every sequence goes on with
    the tokens of `answer`, over and over, by their positions.
    """

    def __init__(
        self,
        sequences: list[Sequence],
        blocks: int = 64,
        snapshots: int | None = None,
        worth: int = 1,
        answer: tuple[int, ...] = (1,),
        **options,
    ) -> None:
        options = {"max_running": 4, "prefill_chunk": 64, **options}
        stateful = {"num_slots": options["max_running"], "num_snapshots": snapshots, "worth": worth}
        manager = BlockManager(blocks, BLOCK) if snapshots is None else StatefulBlocks(blocks, BLOCK, **stateful)
        self.sequences, self.answer = sequences, answer
        self.scheduler = Scheduler(manager, **options)
        self.slots: dict[int, object] = {}
        self.states: dict[int, object] = {}
        self.snapshots: dict[int, object] = {}
        self.computed = 0
        self.now = 0.0
        #: Those that ended since steps failed with nobody beside them.
        self.failed: list[Sequence] = []
        for s in sequences:
            self.scheduler.add(s)

    def step(self) -> list[ScheduledSequence]:
        """The batch that was computed."""
        batch = self._scheduled()
        for copy in self.scheduler.blocks.take_copies():
            self._copy(copy)
        sampled = [item.sequence for item in batch if item.samples]
        for s, count in batch:
            self._compute(s, count)
        self.scheduler.computed(batch)
        self.scheduler.succeeded(sampled)
        for s in sampled:
            now = s.come_true() if isinstance(s, Guess) else s
            if now is not None:
                now.append(self.answer[len(now) % len(self.answer)])
                if now.finish_reason:
                    self.scheduler.finish(now)
        self.check()
        return batch

    def fail(self) -> None:
        """A step that leaves garbage behind, in place of all that is cached too."""
        alone = self.scheduler.suspects[:1]
        self._scheduled()
        self.scheduler.blocks.take_copies()
        last = self.scheduler.failed(short=False)
        assert [last] == (alone or [None])
        self.scheduler.blocks.copied()
        self.scheduler.preempt_all()
        self.scheduler.blocks.cache.flush()
        for memory in (self.slots, self.states, self.snapshots):
            memory.update(dict.fromkeys(memory, ("garbage",)))
        if last is not None:
            self.failed.append(last)
            self.scheduler.finish(last)
        self.check()

    def _scheduled(self) -> list[ScheduledSequence]:
        batch = self.scheduler.schedule(self.now)
        for item in batch:
            item.sequence.start(self.now)
        assert batch, "work is there and none is scheduled"
        assert sum(n for _, n in batch if n > 1) <= self.scheduler.prefill_chunk
        if suspects := self.scheduler.suspects:
            assert [item.sequence for item in batch] == suspects[:1]
        return batch

    def check(self) -> None:
        self.check_blocks()
        self.check_states()
        self.check_order()

    def run(self) -> None:
        for _ in range(5000):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the schedule never ends")

    def _copy(self, copy: Copy | StateCopy) -> None:
        if isinstance(copy, Copy):
            for i in range(copy.num_tokens):
                self.slots[copy.target * BLOCK + i] = self.slots[copy.source * BLOCK + i]
        elif copy.restores:
            self.states[copy.state_slot] = self.snapshots[copy.snapshot]
        else:
            self.snapshots[copy.snapshot] = self.states[copy.state_slot]

    def _compute(self, s: Sequence, count: int) -> None:
        end = s.num_computed + count
        if s.state_slot is not None:
            been_through = (s.namespace, *s.token_ids[: s.num_computed])
            assert not s.num_computed or self.states[s.state_slot] == been_through, (
                "the state is not the sequence's own"
            )
            self.states[s.state_slot] = (s.namespace, *s.token_ids[:end])
        assert len(s.block_table) * BLOCK >= end
        for position in range(s.num_computed, end):
            self.slots[self._slot(s, position)] = (s.namespace, *s.token_ids[: position + 1])
        for position in range(end):
            seen = self.slots[self._slot(s, position)]
            assert seen == (s.namespace, *s.token_ids[: position + 1]), "a sequence sees keys that are not its own"
        self.computed += count

    @staticmethod
    def _slot(s: Sequence, position: int) -> int:
        return s.block_table[position // BLOCK] * BLOCK + position % BLOCK

    def check_blocks(self) -> None:
        manager = self.scheduler.blocks
        cached = cached_nodes(manager.cache)
        own = [block for s in self.sequences for block in s.block_table[len(s.nodes) :]]
        every = own + [node.block for node in cached] + list(manager._free)
        assert sorted(every) == list(range(manager.num_blocks)), "a block is lost, or has two owners"
        assert manager.cache.num_blocks == len(cached)
        assert manager.cache.num_evictable == sum(not node.locks for node in cached)
        for s in self.sequences:
            assert [node.block for node in s.nodes] == s.block_table[: len(s.nodes)]

    def check_states(self) -> None:
        manager = self.scheduler.blocks
        if not isinstance(manager, StatefulBlocks):
            return
        running = [s.state_slot for s in self.scheduler.running]
        assert sorted(running + manager._slots) == list(range(self.scheduler.max_running)), "a slot is lost or shared"
        assert all(s.state_slot is None for s in self.sequences if s not in self.scheduler.running)
        snapshots = manager.cache.snapshots
        held = {**snapshots._new, **snapshots._used}
        assert sorted([*held.values(), *snapshots._free]) == list(range(snapshots.size)), "a snapshot is lost or shared"
        assert held.keys() <= set(cached_nodes(manager.cache)), "a snapshot outlives its node"
        later = Machine([], 1)
        later.states, later.snapshots, later.slots = self.states.copy(), self.snapshots.copy(), self.slots.copy()
        for copy in manager._copies:
            later._copy(copy)
        for node, place in held.items():
            assert later.snapshots[place][1:] == spelled(node), "a snapshot is of other tokens than its node"

    def check_order(self) -> None:
        for line in (self.scheduler.waiting, self.scheduler.running):
            assert line == sorted(line, key=lambda s: s.rank), "a later one stands before an earlier one"


def after(machine: Machine, s: Sequence) -> int:
    """Run one more sequence to its end; its cached tokens."""
    machine.sequences.append(s)
    machine.scheduler.add(s)
    machine.run()
    return s.cached_tokens
