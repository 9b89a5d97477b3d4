"""Random schedules on a simulated cache: no block has two owners, none is lost, what a sequence sees is its own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbgen.engine.block_manager import BlockManager, Copy, StateCopy
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.guess import Guess
from nbgen.engine.mixed_chunk import MixedChunk
from nbgen.engine.prefix_cache import Namespace, Node, PrefixCache
from nbgen.engine.scheduler import CALM, ScheduledSequence, Scheduler
from nbgen.engine.sequence import Sequence, SequenceStatus
from nbgen.engine.stateful_blocks import StatefulBlocks
from nbgen.sampling_params import SamplingParams
from tests.soak import TIMES

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


prompts = st.tuples(
    st.lists(st.integers(1, 2), min_size=1, max_size=24),
    st.integers(1, 20),
    st.sampled_from(["", "a"]),
    st.integers(-1, 1),
)


@settings(max_examples=400 * TIMES)
@given(
    requests=st.lists(prompts, min_size=1, max_size=12),
    blocks=st.integers(11, 24),
    chunk=st.integers(1, 16),
    mixed=st.builds(
        MixedChunk,
        st.integers(1, 9),
        st.integers(9, 20),
        st.sampled_from([0.0, 1.5]),
        st.sampled_from([0.0, 3.0, 5000]),
    ),
    running=st.integers(1, 6),
    aborts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 11)), max_size=4),
    retract=st.integers(0, 60),
    late=st.integers(0, 12),
    states=st.one_of(st.none(), st.tuples(st.integers(0, 6), st.integers(1, 12))),
    drafts=st.integers(0, 12),
    answer=st.lists(st.integers(1, 2), min_size=1, max_size=9).map(tuple),
    short=st.sets(st.integers(0, 60)),
    faults=st.sets(st.integers(0, 60), max_size=6),
)
def test_random_schedules_end_with_every_block_free(
    requests, blocks, chunk, mixed, running, aborts, retract, late, states, drafts, answer, short, faults
) -> None:
    sequences = [sequence(*request) for request in requests]
    for streamed in sequences[::2]:
        streamed.streamed = True
    snapshots, worth = states or (None, 1)
    options = {"max_running": running, "prefill_chunk": chunk, "mixed_chunk": mixed}
    if states is None:  # of which a guess has none
        options["draft_tokens"] = drafts
    machine = Machine(sequences[late:], blocks, snapshots, worth, answer, **options)
    machine.sequences = sequences
    for step in range(5000):
        machine.now = float(step)
        machine.scheduler.blocks.may_grow = lambda step=step: step not in short
        if step < min(late, len(sequences)):
            machine.scheduler.add(sequences[step])
        arrived = [*sequences[late:], *sequences[: min(late, step + 1)]]
        for s in [sequences[which] for when, which in aborts if when == step and which < len(sequences)]:
            if s in arrived and s.status is not SequenceStatus.FINISHED:
                machine.scheduler.finish(s)
        if step == retract:
            machine.scheduler.preempt_all()
            assert machine.scheduler.blocks.num_free == blocks
        if not machine.scheduler.has_work and step >= late:
            break
        if machine.scheduler.has_work:
            machine.fail() if step in faults else machine.step()
    assert not machine.scheduler.has_work, "the schedule never ends"
    assert machine.scheduler.blocks.num_free == blocks
    machine.scheduler.blocks.cache.flush()
    machine.check_states()
    assert len(machine.scheduler.blocks._free) == blocks
    assert len(machine.scheduler.blocks.cache.snapshots) == 0
    aborted = [*machine.failed, *(sequences[which] for _, which in aborts if which < len(sequences))]
    assert all(s.num_output == s.budget for s in sequences if s not in aborted)
    for s in sequences:
        expected = [answer[place % len(answer)] for place in range(s.num_prompt, len(s))]
        assert s.output_ids == expected, "a guess was taken for a token, or stood in its way"


def drafted(answer: tuple[int, ...], count: int = 1, **options) -> list[int]:
    """Rows of each step of so many sequences of 24 tokens."""
    machine = Machine([sequence([5, 6], 24) for _ in range(count)], answer=answer, draft_tokens=8, **options)
    rows = []
    while machine.scheduler.has_work:
        rows.append(len(machine.step()))
    assert all(s.num_output == 24 for s in machine.sequences)
    return rows


def test_what_repeats_comes_several_tokens_a_step() -> None:
    assert drafted((1,)) == [1, 1, 1, 2, 3, 6, 9, 1]
    assert drafted((1, 2, 3)) == [1, 1, 1, 1, 1, 2, 3, 6, 8]
    assert drafted(tuple(range(7, 37))) == [1] * 24


def test_many_share_the_guesses_of_a_step() -> None:
    assert max(drafted((1,), 4)) == 4 + 8
    assert max(drafted((1,), 9, max_running=9)) == 9


def test_guesses_take_no_block_that_is_not_free() -> None:
    cramped = Machine([sequence([5, 6], 24) for _ in range(3)], blocks=8, draft_tokens=8)
    cramped.run()
    assert cramped.scheduler.blocks.num_free == 8


#: What the sequence of 16 tokens `[1, 2] * 8` goes on with as guessed, and then otherwise.
OTHERWISE = (1, *range(40, 48), *range(70, 77))


def test_nobody_gives_way_to_a_guess() -> None:
    """The first one's wrong guesses are in a sixth block, and the second has ended when it comes there itself."""
    first, second = sequence([1, 2] * 8, 10), sequence(list(range(20, 35)), 4)
    machine = Machine([first, second], blocks=10, answer=OTHERWISE, draft_tokens=8)
    machine.step()
    machine.step()
    assert (len(first), len(first.block_table)) == (18, 6)
    machine.run()
    assert machine.scheduler.preemptions == 0


def test_nobody_waits_for_a_guess() -> None:
    first, second = sequence([1, 2] * 8, 10), sequence(list(range(20, 35)), 1)
    machine = Machine([first], blocks=9, answer=OTHERWISE, draft_tokens=8)
    machine.step()
    machine.step()
    assert (len(first), len(first.block_table)) == (18, 7)
    machine.scheduler.add(second)
    assert second in [item.sequence for item in machine.step()]


def test_guesses_do_not_cross_the_length_beyond_which_keys_are_others() -> None:
    machine = Machine([sequence([5, 6], 24)], draft_tokens=8, long_after=12)
    while machine.scheduler.has_work:
        guesses = [item.sequence for item in machine.step() if isinstance(item.sequence, Guess)]
        assert all((len(guess) > 12) == guess.namespace.long for guess in guesses)


def test_who_has_grown_long_waits_as_a_long_one() -> None:
    """Whoever has it wait: what is computed of it from now on has other keys than before."""
    grown = sequence([5, 6], 24)
    machine = Machine([grown], long_after=12)
    while len(grown) <= 12:
        machine.step()
    machine.scheduler.preempt_all()
    assert grown.namespace.long


def test_who_waits_for_room_is_not_looked_at_in_every_step() -> None:
    """What is cached of a long prompt takes long to find: 1.5 ms of 32,000 tokens."""
    first, late, looked = sequence([7] * 150, 40), sequence([1] * 100, 2), []
    machine = Machine([first], blocks=60)
    blocks, steps = machine.scheduler.blocks, 0
    reuse, blocks.reuse = blocks.reuse, lambda s: looked.append(s) or reuse(s)
    while first.num_output < 30:
        machine.step()
        if first.num_output == 1:
            machine.scheduler.add(late)
        steps += late.rank > first.rank
    assert steps > 25
    assert looked == [first, late]
    machine.run()
    assert late.num_output == 2


def test_who_waits_for_what_another_copies_waits_for_that_step_alone() -> None:
    first, late = sequence([7] * 5, 6), sequence([1] * 10)
    machine = Machine([first], blocks=5)
    machine.step()
    machine.step()
    machine.scheduler.preempt_all()
    machine.scheduler.add(late)
    assert [item.sequence for item in machine.step()] == [first]
    assert [item.sequence for item in machine.step()] == [first, late]


def test_decodes_go_on_while_a_long_prompt_is_computed() -> None:
    short, long = sequence([1, 2], 50), sequence([2] * 100, 5)
    machine = Machine([short], prefill_chunk=8)
    machine.step()
    machine.scheduler.add(long)
    for _ in range(12):
        before = short.num_output
        machine.step()
        assert short.num_output == before + 1, "the stream stalled for the prompt"
    assert long.num_computed == 96


def test_a_prompt_takes_small_steps_beside_streams_and_large_ones_beside_what_nobody_reads() -> None:
    short, unread, long = sequence([1, 2], 50), sequence([3, 4], 50), sequence([2] * 60, 5)
    short.streamed = True
    machine = Machine([short, unread], prefill_chunk=20, mixed_chunk=MixedChunk(4))
    machine.step()
    machine.scheduler.add(long)
    machine.step()
    assert long.num_computed == 4
    machine.scheduler.finish(short)
    machine.step()
    assert long.num_computed == 24
    machine.scheduler.finish(unread)
    machine.step()
    assert long.num_computed == 44


def test_more_of_a_prompt_goes_beside_more_streams_and_after_more_of_it() -> None:
    chunk = MixedChunk(least=12, most=128, for_each=1.5)
    assert [chunk.tokens(decodes, 0) for decodes in (1, 8, 32, 100)] == [13, 24, 60, 128]
    assert [chunk.tokens(1, context) for context in (320, 640, 10000)] == [13, 20, 128]


def finishing_order(machine: Machine) -> list[int]:
    """Which of its sequences ended first, second, …"""
    finished: list[int] = []
    while machine.scheduler.has_work:
        machine.step()
        finished += [i for i, s in enumerate(machine.sequences) if s.finish_reason and i not in finished]
    return finished


def streamed(prompt: int | list[int], output: int = 4) -> Sequence:
    made = sequence(prompt, output)
    made.streamed = True
    return made


def burst(*prompts: int, patience: float = 1.0, **options) -> Machine:
    """Streams of prompts of so many tokens each, that come at once."""
    streams = [streamed([i] * length) for i, length in enumerate(prompts, 5)]
    return Machine(streams, prefill_chunk=20, mixed_chunk=MixedChunk(2, 4, patience=patience), **options)


def outputs(machine: Machine) -> list[int]:
    """Tokens of each of its sequences after one step more."""
    machine.step()
    return [s.num_output for s in machine.sequences]


def test_first_tokens_of_prompts_that_come_at_once_come_before_second_ones() -> None:
    machine = burst(16, 16, 16)
    assert [outputs(machine) for _ in range(4)] == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 2, 2]]


def test_second_tokens_wait_for_so_long_only() -> None:
    machine = burst(16, 16, 16)
    assert [outputs(machine) for _ in range(2)] == [[1, 0, 0], [1, 1, 0]]
    machine.now = 1.5
    assert outputs(machine) == [2, 2, 0]


def test_second_tokens_wait_for_no_long_prompt_and_where_nobody_reads_them_for_none() -> None:
    assert [outputs(machine := burst(16, 40)), outputs(machine)] == [[1, 0], [2, 0]]
    unread = burst(16, 16, 16)
    for s in unread.sequences:
        s.streamed = False
    assert [outputs(unread) for _ in range(2)] == [[1, 0, 0], [2, 1, 0]]


def test_a_stream_that_runs_waits_for_no_burst() -> None:
    machine = burst(16)
    machine.step()
    machine.step()
    late = [streamed([i] * 6) for i in range(20, 23)]
    for s in late:
        machine.scheduler.add(s)
    machine.sequences += late
    assert outputs(machine)[0] == 3


def test_second_tokens_wait_for_nobody_who_finds_no_block() -> None:
    machine = burst(16, 16, 16, blocks=5)
    assert [outputs(machine) for _ in range(2)] == [[1, 0, 0], [2, 0, 0]]


def test_prompts_that_are_not_cut_come_one_to_a_step_beside_the_decodes() -> None:
    machine = Machine([sequence([n] * n, output=9) for n in (5, 30, 2)], prefill_chunk=None)
    steps = [[count for _, count in machine.step()] for _ in range(4)]
    assert steps == [[5], [1, 30], [1, 1, 2], [1, 1, 1]]


def test_first_come_first_served() -> None:
    assert finishing_order(Machine([sequence(4, 2) for _ in range(4)], blocks=8, max_running=1)) == [0, 1, 2, 3]


def test_first_come_first_served_within_a_priority() -> None:
    waiting = [sequence(4, 2, priority=priority) for priority in (0, 5, -1, 5, 0)]
    assert finishing_order(Machine(waiting, blocks=8, max_running=1)) == [1, 3, 0, 4, 2]


def test_what_has_to_give_way_is_the_last_of_the_lowest_priority() -> None:
    low, high = sequence([1] * 8, 40, priority=0), sequence([2] * 8, 40, priority=1)
    machine = Machine([low], blocks=14)
    machine.step()
    machine.sequences.append(high)
    machine.scheduler.add(high)
    machine.run()
    assert machine.scheduler.preemptions == 1
    assert finishing_order(machine) == []
    assert low.num_output == high.num_output == 40


def after(machine: Machine, s: Sequence) -> int:
    """Run one more sequence to its end; its cached tokens."""
    machine.sequences.append(s)
    machine.scheduler.add(s)
    machine.run()
    return s.cached_tokens


def test_cached_tokens_are_exact_to_the_token() -> None:
    """The numbers of SGLang's own test, a hundredth of their size."""
    machine = Machine([], blocks=64)
    counts = [after(machine, sequence(list(range(1, 1 + length)))) for length in (10, 100, 100, 10, 110)]
    assert counts == [0, 10, 99, 9, 100]


def test_what_a_prompt_has_computed_of_itself_was_not_cached() -> None:
    own = sequence(40)
    machine = Machine([own], prefill_chunk=8)
    for _ in range(3):
        machine.step()
        own.start(now=0.0)
    machine.scheduler.preempt_all()
    while machine.scheduler.has_work:
        machine.step()
    assert own.cached_tokens == 0


def test_a_chat_reuses_its_prompt_and_its_answer() -> None:
    machine = Machine([], blocks=64)
    first = sequence(list(range(2, 15)), 9)
    after(machine, first)
    second = sequence([*first.token_ids, 7, 8, 9])
    assert after(machine, second) == first.num_prompt + first.num_output - 1


def test_namespaces_share_nothing() -> None:
    machine = Machine([], blocks=64)
    assert after(machine, sequence(20, namespace="a")) == 0
    assert after(machine, sequence(20, namespace="b")) == 0
    assert after(machine, sequence(20, namespace="a")) == 19


def test_requests_that_arrive_together_share_their_beginning() -> None:
    prefix = [3] * 40
    together = [sequence([*prefix, i, i], 2) for i in range(4, 8)]
    machine = Machine(together)
    machine.run()
    assert [s.cached_tokens for s in together] == [0, 40, 40, 40]
    assert machine.computed == 42 + 3 * 2 + 4


def test_least_recent_use_goes_first() -> None:
    machine = Machine([], blocks=12)
    old, kept = [1] * 16, [2] * 16
    after(machine, sequence(old))
    after(machine, sequence(kept))
    after(machine, sequence(kept))
    after(machine, sequence([3] * 20))
    assert after(machine, sequence(kept)) == 15
    assert after(machine, sequence(old)) < 16


def test_the_order_of_leaves_does_not_grow_without_bound() -> None:
    machine = Machine([], blocks=16)
    for _ in range(500):
        after(machine, sequence(10))
    assert len(machine.scheduler.blocks.cache._leaves) < 150


def stateful(snapshots: int = 8, **options) -> Machine:
    return Machine([], snapshots=snapshots, **options)


def test_a_prompt_with_state_begins_again_at_its_last_whole_block() -> None:
    machine = stateful()
    assert [after(machine, sequence(list(range(1, 1 + length)))) for length in (10, 10, 14)] == [0, 8, 10]
    assert after(machine, sequence(list(range(1, 10)))) == 8


def test_a_chat_with_state_goes_on_at_the_very_token() -> None:
    machine = stateful(worth=64)
    first = sequence(list(range(2, 15)), 9)
    after(machine, first)
    second = sequence([*first.token_ids, 7, 8, 9])
    assert after(machine, second) == first.num_prompt + first.num_output - 1
    edited = sequence([*first.token_ids, 9, 9, 9])
    assert after(machine, edited) == first.num_prompt + first.num_output - 1, "that end is forgotten"


def test_the_second_prompt_leaves_a_snapshot_where_it_parts_from_the_first() -> None:
    machine = stateful(worth=8)
    counts = [after(machine, sequence([3] * 21 + [i] * 9)) for i in range(4, 8)]
    assert counts == [0, 0, 20, 20]
    assert machine.computed == 30 + 30 + 10 + 10


def test_prompts_with_state_that_arrive_together_share_their_beginning() -> None:
    together = [sequence([*[3] * 41, i, i], 2) for i in range(4, 8)]
    machine = Machine(together, snapshots=8, worth=8)
    machine.run()
    assert [s.cached_tokens for s in together] == [0, 40, 40, 40]
    assert machine.computed == 43 + 3 * 3 + 4


def test_who_arrives_while_a_prompt_is_computed_gets_its_state_from_where_they_part() -> None:
    first, second = sequence([3] * 40, 2), sequence([3] * 29 + [4] * 9, 2)
    machine = Machine([first], snapshots=8, worth=8, prefill_chunk=10)
    machine.step()
    assert after(machine, second) == 28
    assert machine.computed == 40 + 10 + 2


def test_samples_of_a_prompt_with_state_begin_at_its_last_whole_block() -> None:
    samples = [sequence([3] * 30, 5) for _ in range(3)]
    machine = Machine(samples, snapshots=4, worth=8)
    machine.run()
    assert [s.cached_tokens for s in samples] == [0, 28, 28]


def test_a_short_prompt_with_state_is_not_cut() -> None:
    machine = stateful(worth=64)
    assert [after(machine, sequence([3] * 60)) for _ in range(2)] == [0, 0]
    assert machine.computed == 120


@pytest.mark.parametrize("snapshots", [None, 4])
def test_who_gave_its_blocks_back_goes_on_where_it_was(snapshots: int | None) -> None:
    machine = Machine([sequence([i] * 8, 40) for i in (1, 2)], snapshots=snapshots, worth=64)
    for _ in range(10):
        machine.step()
    machine.scheduler.preempt_all()
    machine.run()
    assert machine.scheduler.preemptions == 2
    assert machine.computed == 2 * 47, "something was computed again"


def test_namespaces_share_no_state() -> None:
    machine = stateful()
    assert [after(machine, sequence(20, namespace=name)) for name in ("a", "b", "a")] == [0, 0, 16]


def test_a_snapshot_that_was_of_use_outlives_those_that_were_not() -> None:
    machine = stateful(snapshots=3, worth=64)
    shared = list(range(2, 12))
    after(machine, sequence(shared))
    assert after(machine, sequence([*shared, 1, 1, 1])) == 10
    for i in range(20, 26):
        assert after(machine, sequence([i] * 10)) == 0
    assert after(machine, sequence([*shared, 1, 2, 3])) == 10
    assert after(machine, sequence([20] * 11)) == 0


def test_without_room_for_snapshots_nothing_is_reused() -> None:
    machine = stateful(snapshots=0)
    assert [after(machine, sequence([3] * 30)) for _ in range(2)] == [0, 0]
    assert machine.scheduler.blocks.cache.num_blocks == 0


def test_the_longest_way_with_a_snapshot_is_gone() -> None:
    machine = stateful(worth=64)
    assert [after(machine, sequence([2, 2, 2, 2, 1], output)) for output in (1, 3)] == [0, 0]
    assert after(machine, sequence([2, 2, 2, 2, 1, 1, 1, 3])) == 7


def test_a_block_to_be_copied_never_keeps_its_sequence_from_running() -> None:
    machine = stateful(worth=64, blocks=11)
    after(machine, sequence([2] * 9, 1))
    assert after(machine, sequence([2] * 9 + [3] * 31, 4)) == 0, "it needs all blocks, the one to be copied as well"


def test_who_must_wait_holds_nothing() -> None:
    machine = stateful(worth=4, prefill_chunk=6)
    after(machine, sequence([2] * 9, 1))
    first = sequence([2] * 30)
    machine.sequences.append(first)
    machine.scheduler.add(first)
    machine.step()
    assert after(machine, sequence([2] * 30 + [3] * 2)) == 28, "it waits for more than the nine tokens that are cached"
    assert first.cached_tokens == 9
    assert machine.scheduler.blocks.num_free == 64


def test_nobody_waits_for_the_state_of_another_text_or_namespace() -> None:
    others = [sequence([3] * 40), sequence([3] * 40, namespace="a"), sequence([4] * 40)]
    machine = Machine(others, snapshots=8, worth=8, prefill_chunk=120)
    batch = machine.scheduler.schedule()
    assert len(batch) == 3


def test_steps_grow_again_once_a_shortage_is_long_over() -> None:
    scheduler = Machine([], prefill_chunk=1000).scheduler
    for _ in range(3):
        scheduler.failed(short=True)
    assert scheduler.prefill_chunk == 250
    chunks = []
    for _ in range(3 * CALM):
        chunks.append(scheduler.prefill_chunk)
        scheduler.succeeded([])
    assert chunks == [250] * CALM + [500] * CALM + [1000] * CALM
    assert scheduler.prefill_chunk == 1000
