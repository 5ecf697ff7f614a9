"""Wrong rings, as learners write them: each gets the diagnosis that is meant for it, and words that help."""

import numpy as np
import pytest

from refimpl.collectives import all_reduce, bounds, reduce_scatter
from refimpl.course.exercises.checks import examine


def chunks_of(x, P):
    b = bounds(len(x), P)
    return lambda k: x[b[k % P]:b[k % P + 1]]


def lap_of_sums(y, comm, first=1, steps=None, add=True, to=1):
    """The first lap, with things to get wrong."""
    P, r, chunk = comm.size, comm.rank, chunks_of(y, comm.size)
    for step in range(P - 1 if steps is None else steps):
        incoming = comm.sendrecv(chunk(r - step - first), dst=(r + to) % P, src=(r - to) % P)
        if add:
            chunk(r - step - first - 1)[...] += incoming
        else:
            chunk(r - step - first - 1)[...] = incoming
    return chunk


def lap_of_copies(y, comm, first=0):
    """The second lap, likewise."""
    P, r, chunk = comm.size, comm.rank, chunks_of(y, comm.size)
    for step in range(P - 1):
        chunk(r - step - first - 1)[...] = comm.sendrecv(chunk(r - step - first), dst=(r + 1) % P, src=(r - 1) % P)


# reduce-scatter

def scatter_right(x, comm):
    return lap_of_sums(x.copy(), comm)(comm.rank).copy()


def scatter_to_the_left(x, comm):
    """A ring that turns the other way is a ring."""
    P, r, y = comm.size, comm.rank, x.copy()
    chunk = chunks_of(y, P)
    for step in range(P - 1):
        chunk(r + step + 2)[...] += comm.sendrecv(chunk(r + step + 1), dst=(r - 1) % P, src=(r + 1) % P)
    return chunk(r)


def scatter_whole_arrays(x, comm):
    total = x.copy()
    for turn in range(1, comm.size):
        total += comm.sendrecv(x, dst=(comm.rank + turn) % comm.size, src=(comm.rank - turn) % comm.size)
    return chunks_of(total, comm.size)(comm.rank)


def scatter_neighbours_chunk(x, comm):
    return lap_of_sums(x.copy(), comm, first=0)(comm.rank + 1).copy()


def scatter_chunk_on_its_way(x, comm):
    return lap_of_sums(x.copy(), comm)(comm.rank + 1).copy()


def scatter_sends_another_chunk(x, comm):
    P, r, y = comm.size, comm.rank, x.copy()
    chunk = chunks_of(y, P)
    for step in range(P - 1):
        chunk(r - step - 2)[...] += comm.sendrecv(chunk(r - step), dst=(r + 1) % P, src=(r - 1) % P)
    return chunk(r)


def scatter_one_step_short(x, comm):
    return lap_of_sums(x.copy(), comm, steps=comm.size - 2)(comm.rank)


def scatter_sends_its_own_part(x, comm):
    P, r, y = comm.size, comm.rank, x.copy()
    for step in range(P - 1):
        incoming = comm.sendrecv(chunks_of(x, P)(r - step - 1), dst=(r + 1) % P, src=(r - 1) % P)
        chunks_of(y, P)(r - step - 2)[...] += incoming
    return chunks_of(y, P)(r)


def scatter_adds_itself_again(x, comm):
    return scatter_right(x, comm) + chunks_of(x, comm.size)(comm.rank)


def scatter_without_sum(x, comm):
    return chunks_of(x, comm.size)(comm.rank)


def scatter_overwrites(x, comm):
    return lap_of_sums(x.copy(), comm, add=False)(comm.rank)


def scatter_whole_result(x, comm):
    lap_of_sums(y := x.copy(), comm)
    return y


def scatter_in_place(x, comm):
    return lap_of_sums(x, comm)(comm.rank)


def scatter_send_first(x, comm):
    P, r, y = comm.size, comm.rank, x.copy()
    chunk = chunks_of(y, P)
    for step in range(P - 1):
        comm.send(chunk(r - step - 1), (r + 1) % P)
        chunk(r - step - 2)[...] += comm.recv((r - 1) % P)
    return chunk(r)


def scatter_mean(x, comm):
    return scatter_right(x, comm) / comm.size


def scatter_with_the_library(x, comm):
    return reduce_scatter(x, comm)


def scatter_unfinished(x, comm):
    raise NotImplementedError


def scatter_forgets_return(x, comm):
    lap_of_sums(x.copy(), comm)


def scatter_breaks(x, comm):
    return comm.sendrecv(x, dst=comm.rank + 1, src=comm.rank - 1)


def scatter_direct(x, comm):
    """Each chunk straight to its owner: as many bytes, but not around the ring."""
    P, r, chunk = comm.size, comm.rank, chunks_of(x, comm.size)
    mine = chunk(r).copy()
    for turn in range(1, P):
        mine += comm.sendrecv(chunk(r + turn), dst=(r + turn) % P, src=(r - turn) % P)
    return mine


def scatter_leaves_a_message(x, comm):
    mine = scatter_right(x, comm)
    comm.isend(x, (comm.rank + 1) % comm.size)
    return mine


# all-gather

def gather_right(block, comm):
    blocks = [None] * comm.size
    blocks[comm.rank] = block
    for step in range(comm.size - 1):
        blocks[(comm.rank - step - 1) % comm.size] = comm.sendrecv(
            blocks[(comm.rank - step) % comm.size], dst=(comm.rank + 1) % comm.size, src=(comm.rank - 1) % comm.size)
    return np.concatenate(blocks)


def gather_in_order_of_arrival(block, comm):
    blocks = [block]
    for _ in range(comm.size - 1):
        blocks.append(comm.sendrecv(blocks[-1], dst=(comm.rank + 1) % comm.size, src=(comm.rank - 1) % comm.size))
    return np.concatenate(blocks)


def gather_equal_blocks(block, comm):
    """Right only where all blocks have one size."""
    m, P, r = len(block), comm.size, comm.rank
    y = np.zeros(m * P)
    y[m * r:m * (r + 1)] = block
    for step in range(P - 1):
        k = (r - step) % P
        incoming = comm.sendrecv(y[m * k:m * (k + 1)], dst=(r + 1) % P, src=(r - 1) % P)
        k = (k - 1) % P
        y[m * k:m * (k + 1)] = incoming
    return y


def gather_own_block(block, comm):
    return block


def gather_direct(block, comm):
    P, r, blocks = comm.size, comm.rank, [None] * comm.size
    blocks[r] = block
    for turn in range(1, P):
        blocks[(r - turn) % P] = comm.sendrecv(block, dst=(r + turn) % P, src=(r - turn) % P)
    return np.concatenate(blocks)


def gather_receives_first(block, comm):
    blocks = [None] * comm.size
    blocks[comm.rank] = block
    for step in range(comm.size - 1):
        blocks[(comm.rank - step - 1) % comm.size] = comm.recv((comm.rank - 1) % comm.size)
        comm.send(blocks[(comm.rank - step) % comm.size], (comm.rank + 1) % comm.size)
    return np.concatenate(blocks)


def gather_a_list(block, comm):
    return [gather_right(block, comm)]


def gather_unwritten(block, comm):
    return np.full_like(gather_right(block, comm), np.nan)


def gather_in_float32(block, comm):
    return gather_right(block, comm).astype("float32")


# all-reduce

def reduce_right(x, comm):
    lap_of_sums(y := x.copy(), comm)
    lap_of_copies(y, comm)
    return y


def reduce_first_lap_only(x, comm):
    lap_of_sums(y := x.copy(), comm)
    return y


def reduce_nothing(x, comm):
    return x.copy()


def reduce_starts_the_second_lap_elsewhere(x, comm):
    lap_of_sums(y := x.copy(), comm)
    lap_of_copies(y, comm, first=1)
    return y


def reduce_whole_arrays(x, comm):
    y, passing = x.copy(), x
    for _ in range(comm.size - 1):
        passing = comm.sendrecv(passing, dst=(comm.rank + 1) % comm.size, src=(comm.rank - 1) % comm.size)
        y += passing
    return y


def reduce_mean(x, comm):
    return reduce_right(x, comm) / comm.size


def reduce_twice(x, comm):
    return reduce_right(reduce_right(x, comm), comm)


def reduce_chunks_exchanged(x, comm):
    return np.roll(reduce_right(x, comm), len(x) // comm.size)


def reduce_for_ever(x, comm):
    step = 0
    while step < comm.size:
        pass


def reduce_with_the_library(x, comm):
    return all_reduce(x, comm, algorithm="ring")


def reduce_on_every_rank_but_one(x, comm):
    return reduce_right(x, comm) if comm.rank else comm.recv(comm.size - 1)


WRONG = [
    (scatter_right, "passed", []),
    (scatter_to_the_left, "passed", []),
    (scatter_unfinished, "not implemented", []),
    (scatter_whole_arrays, "wrong traffic",
     ["4 ranks, 100 elements: each rank sent 300 elements in 3 messages; a ring sends 75 in 3",
      "You seem to send the whole array to every rank"]),
    (scatter_direct, "wrong traffic", ["rank 0 sent messages to ranks 1, 2, 3; in a ring"]),
    (scatter_neighbours_chunk, "wrong order", ["this is what rank 1 should have", "in step 0 rank r sends chunk r-1"]),
    (scatter_chunk_on_its_way, "wrong order", ["this is chunk 1, and not yet all of its sum"]),
    (scatter_sends_another_chunk, "wrong order", ["numbers of the chunks 0 and 1 and 2 are added to each other"]),
    (scatter_one_step_short, "missing all-reduce", ["Chunk 0 has only the addend of rank 0", "in each of P-1 steps"]),
    (scatter_sends_its_own_part, "wrong addends", ["Chunk 0 lacks what ranks 1, 2 brought", "the sum so far"]),
    (scatter_adds_itself_again, "wrong addends", ["has what rank 0 brought 2 times"]),
    (scatter_without_sum, "missing all-reduce", ["Chunk 0 has only the addend of rank 0"]),
    (scatter_overwrites, "missing all-reduce", ["Chunk 0 has only the addend of rank 1"]),
    (scatter_whole_result, "wrong shape",
     ["has shape (100,), expected (25,)", "a slice or a reduce-scatter is missing"]),
    (scatter_forgets_return, "wrong shape", ["rank 0 returned None", "return at the end"]),
    (scatter_in_place, "input changed", ["x on rank 0 is not what it was"]),
    (scatter_send_first, "deadlock",
     ["a circle: rank 0 waits for rank 1", "test_ring_diagnoses.py:", "With small messages"]),
    (scatter_mean, "off by a factor", ["4 times too small"]),
    (scatter_with_the_library, "library used", ["calling reduce_scatter"]),
    (scatter_leaves_a_message, "messages left", ["did not receive"]),
    (scatter_breaks, "exception",
     ["on rank 0 of 4, at test_ring_diagnoses.py:", "return comm.sendrecv(x, dst=comm", "src=-1 is not a rank"]),
    (gather_right, "passed", []),
    (gather_in_order_of_arrival, "wrong order", ["in the place of chunk 1 there is chunk 3"]),
    (gather_equal_blocks, "exception",
     ["3 ranks, 100 elements in all: on rank 2 of 3", "y[m * k:m * (k + 1)] = incoming"]),
    (gather_own_block, "wrong shape", ["an all-gather is missing"]),
    (gather_direct, "wrong traffic", ["rank 0 sent messages to ranks 1, 2, 3"]),
    (gather_receives_first, "deadlock", ["rank 1 waits"]),
    (gather_a_list, "wrong shape", ["rank 0 returned a list of 1, expected an array"]),
    (gather_unwritten, "not a number", ["100 of 100 elements are not finite"]),
    (gather_in_float32, "wrong shape", ["has dtype float32, expected float64"]),
    (reduce_right, "passed", []),
    (reduce_nothing, "missing all-reduce", ["the ranks' arrays add up to the right one"]),
    (reduce_first_lap_only, "wrong addends", ["lacks what"]),
    (reduce_starts_the_second_lap_elsewhere, "wrong addends", ["chunk"]),
    (reduce_whole_arrays, "wrong traffic", ["each rank sent 300 elements in 3 messages; a ring sends 150 in 6"]),
    (reduce_mean, "off by a factor", ["4 times too small"]),
    (reduce_twice, "off by a factor", ["4 times too large"]),
    (reduce_chunks_exchanged, "wrong order", ["in the place of chunk 0 there is chunk 3"]),
    (reduce_with_the_library, "library used", ["calling all_reduce"]),
    (reduce_on_every_rank_but_one, "deadlock", ["no rank can go on"]),
    (reduce_for_ever, "too slow", ["test_ring_diagnoses.py:", "Does every loop come to an end?"]),
]
EXERCISE = {"scatter": "ring_reduce_scatter", "gather": "ring_all_gather", "reduce": "ring_all_reduce"}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    seconds = 0.5 if diagnosis == "too slow" else 10
    verdict = examine(function, EXERCISE[function.__name__.partition("_")[0]], seconds)
    assert verdict.diagnosis == diagnosis, str(verdict)
    assert verdict.passed == (diagnosis == "passed") and (verdict.score == verdict.points) == verdict.passed
    for words in says:
        assert words.lower() in str(verdict).lower(), str(verdict)
