"""Wrong merges, owners, block rules and ring backwards, as learners and real codebases write them."""

import importlib.util

import numpy as np
import pytest
from diagnoses import assert_diagnosed, assert_solution_passes_and_stub_is_not_implemented

from refimpl.collectives import all_gather, reduce_scatter
from refimpl.course.exercises.checks import examine
from refimpl.course.exercises.stubs import folder
from refimpl.model.blockwise import merge

# merge


def merge_right(out1, lse1, out2, lse2):
    return merge(out1, lse1, out2, lse2)


def merge_by_sigmoid(out1, lse1, out2, lse2):
    """As ring-flash-attention writes it, with the case of no keys at all."""
    lse = np.logaddexp(lse1, lse2)
    nothing = np.isneginf(lse)
    share = np.exp(lse2 - np.where(nothing, 0, lse))[:, None]
    return np.where(nothing[:, None], 0, out1 - share * (out1 - out2)), lse


def merge_without_the_largest(out1, lse1, out2, lse2):
    e1, e2 = np.exp(lse1)[:, None], np.exp(lse2)[:, None]
    return (e1 * out1 + e2 * out2) / (e1 + e2), np.log(e1 + e2)[:, 0]


def merge_with_softplus(out1, lse1, out2, lse2):
    """log(1 + exp(d)): EasyContext #14."""
    lse = lse1 + np.log(1 + np.exp(lse2 - lse1))
    return np.exp(lse1 - lse)[:, None] * out1 + np.exp(lse2 - lse)[:, None] * out2, lse


def merge_minds_no_infinity(out1, lse1, out2, lse2):
    largest = np.maximum(lse1, lse2)
    e1, e2 = np.exp(lse1 - largest)[:, None], np.exp(lse2 - largest)[:, None]
    return (e1 * out1 + e2 * out2) / (e1 + e2), largest + np.log(e1 + e2)[:, 0]


def merge_mean(out1, lse1, out2, lse2):
    return (out1 + out2) / 2, np.logaddexp(lse1, lse2)


def merge_sum(out1, lse1, out2, lse2):
    return out1 + out2, np.logaddexp(lse1, lse2)


def merge_undivided(out1, lse1, out2, lse2):
    largest = np.maximum(lse1, lse2)
    return np.exp(lse1 - largest)[:, None] * out1 + np.exp(lse2 - largest)[:, None] * out2, np.logaddexp(lse1, lse2)


def merge_exchanged(out1, lse1, out2, lse2):
    return merge(out2, lse1, out1, lse2)


def merge_keeps_lse(out1, lse1, out2, lse2):
    return merge(out1, lse1, out2, lse2)[0], np.maximum(lse1, lse2)


def merge_out_alone(out1, lse1, out2, lse2):
    return merge(out1, lse1, out2, lse2)[0]


def merge_first(out1, lse1, out2, lse2):
    return out1, np.logaddexp(lse1, lse2)


# owner

def owner_right(position, length, ranks):
    size = length // (2 * ranks)
    chunk, inside = divmod(position, size)
    return (chunk, inside) if chunk < ranks else (2 * ranks - 1 - chunk, size + inside)


def owner_contiguous(position, length, ranks):
    return divmod(position, length // ranks)


def owner_striped(position, length, ranks):
    return position % ranks, position // ranks


def owner_goes_round(position, length, ranks):
    size = length // (2 * ranks)
    chunk, inside = divmod(position, size)
    return chunk % ranks, inside + size * (chunk >= ranks)


def owner_one_off(position, length, ranks):
    size = length // (2 * ranks)
    chunk, inside = divmod(position, size)
    return (chunk, inside) if chunk < ranks else (2 * ranks - chunk, size + inside)


def owner_forgets_the_first_chunk(position, length, ranks):
    rank, place = owner_right(position, length, ranks)
    return rank, place % (length // (2 * ranks))


def owner_mirrors(position, length, ranks):
    """The second chunk from its end."""
    rank, place = owner_right(position, length, ranks)
    size = length // (2 * ranks)
    return rank, place if place < size else 3 * size - 1 - place


def owner_rank_alone(position, length, ranks):
    return owner_right(position, length, ranks)[0]


# blocks

def block_right(queries, keys):
    return "none" if keys[0] > queries[-1] else "all" if keys[-1] <= queries[0] else "part"


def block_pair_by_pair(queries, keys):
    seen = [key <= query for query in queries for key in keys]
    return "all" if all(seen) else "part" if any(seen) else "none"


def block_strict(queries, keys):
    return "none" if keys[0] >= queries[-1] else "all" if keys[-1] < queries[0] else "part"


def block_by_its_first(queries, keys):
    """As if blocks were contiguous: whoever begins later is later."""
    return "none" if keys[0] > queries[0] else "all" if keys[0] < queries[0] else "part"


def block_sees_too_much(queries, keys):
    return "none" if keys[0] > queries[-1] else "all" if keys[-1] <= queries[-1] else "part"


def block_computes_everything(queries, keys):
    return "all" if keys[-1] <= queries[0] else "part"


def block_masks_everything(queries, keys):
    return "none" if keys[0] > queries[-1] else "part"


def block_yes_or_no(queries, keys):
    return keys[0] <= queries[-1]


# ring

spec = importlib.util.spec_from_file_location("solution", next(folder("solutions").glob("*_ring_backward.py")))
solution = importlib.util.module_from_spec(spec)
spec.loader.exec_module(solution)
numbers = solution.block_backward


def neighbours(comm):
    return {"dst": (comm.rank + 1) % comm.size, "src": (comm.rank - 1) % comm.size}


def ring(dout, q, k, v, out, lse, comm, hops=None, keys_too=False):
    """The right one, with things to get wrong: how often the gradients go on."""
    kv, dq, dkv, P = np.stack([k, v]), np.zeros_like(q), np.zeros((2, *k.shape)), comm.size
    for step in range(P):
        part, dk, dv = numbers(dout, q, *kv, out, lse)
        dq, dkv = dq + part, dkv + np.stack([dk, dv])
        if P > 1 and (step < P - 1 or keys_too):
            kv = comm.sendrecv(kv, **neighbours(comm))
        if P > 1 and step < (P if hops is None else hops):
            dkv = comm.sendrecv(dkv, **neighbours(comm))
    return dq, *dkv


def ring_right(dout, q, k, v, out, lse, comm):
    return ring(dout, q, k, v, out, lse, comm)


def ring_with_home(dout, q, k, v, out, lse, comm):
    """As refimpl does: the own block's gradients wait at home, so that one step is saved."""
    kv, dkv = np.stack([k, v]), None
    dq, *home = numbers(dout, q, k, v, out, lse)
    for _ in range(comm.size - 1):
        kv = comm.sendrecv(kv, **neighbours(comm))
        if dkv is not None:
            dkv = comm.sendrecv(dkv, **neighbours(comm))
        part, dk, dv = numbers(dout, q, *kv, out, lse)
        dq, dkv = dq + part, np.stack([dk, dv]) + (0 if dkv is None else dkv)
    if comm.size > 1:
        home = np.stack(home) + comm.sendrecv(dkv, **neighbours(comm))
    return dq, *home


def ring_of_its_own_block(dout, q, k, v, out, lse, comm):
    return numbers(dout, q, k, v, out, lse)


def ring_stops_before_home(dout, q, k, v, out, lse, comm):
    return ring(dout, q, k, v, out, lse, comm, hops=comm.size - 1)


def ring_keeps_what_it_finds(dout, q, k, v, out, lse, comm):
    """Gradients of all blocks, summed where the queries are."""
    kv, total = np.stack([k, v]), 0
    for step in range(comm.size):
        total = [np.add(*pair) for pair in zip(total or [0, 0, 0], numbers(dout, q, *kv, out, lse))] if not step or len(
            {len(kv[0]), len(q)}) == 1 else total
        if step < comm.size - 1:
            kv = comm.sendrecv(kv, **neighbours(comm))
    return tuple(total)


def ring_own_gradients_at_home(dout, q, k, v, out, lse, comm):
    """dq is right; dk and dv are of its own queries alone."""
    dq, _, _ = ring(dout, q, k, v, out, lse, comm)
    return dq, *numbers(dout, q, k, v, out, lse)[1:]


def ring_keys_go_home_too(dout, q, k, v, out, lse, comm):
    return ring(dout, q, k, v, out, lse, comm, keys_too=True)


def ring_gathers(dout, q, k, v, out, lse, comm):
    keys, values = (all_gather(x, comm, algorithm="ring") for x in (k, v))
    dq, dk, dv = numbers(dout, q, keys, values, out, lse)
    return dq, reduce_scatter(dk, comm), reduce_scatter(dv, comm)


def ring_sends_first(dout, q, k, v, out, lse, comm):
    comm.send(np.stack([k, v]), (comm.rank + 1) % comm.size)
    comm.recv((comm.rank - 1) % comm.size)
    return numbers(dout, q, k, v, out, lse)


def ring_local_softmax(dout, q, k, v, out, lse, comm):
    """lse of the own block in the place of that of the whole row."""
    return ring(dout, q, k, v, out, np.log(np.exp(q @ k.T / q.shape[1]**0.5).sum(axis=1)), comm)


def ring_without_dv(dout, q, k, v, out, lse, comm):
    return ring(dout, q, k, v, out, lse, comm)[:2]


WRONG = [
    (merge_right, "passed", []),
    (merge_by_sigmoid, "passed", []),
    (merge_without_the_largest, "overflow", ["exp(1000) is more than any float", "exp(lse - largest)"]),
    (merge_with_softplus, "overflow", ["lse [   0., 1000.] and [1000.,    0.]"]),
    (merge_minds_no_infinity, "not a number", ["-inf minus -inf is no number", "Where both are -inf"]),
    (merge_mean, "not weighted", ["the mean of both"]),
    (merge_sum, "not weighted", ["adds both up"]),
    (merge_undivided, "not divided", ["Divide by the sum of the weights"]),
    (merge_exchanged, "not weighted", ["exchanged"]),
    (merge_keeps_lse, "lse not merged", ["out is right, lse is not", "The next merge needs it"]),
    (merge_out_alone, "wrong shape", ["it is a ndarray"]),
    (merge_first, "wrong values", ["row 0 is"]),
    (owner_right, "passed", []),
    (owner_contiguous, "contiguous", ["position 2 belongs to rank 1; you say 0", "Cut into 2P chunks"]),
    (owner_striped, "striped", ["dealt out one by one"]),
    (owner_goes_round, "not back", ["position 8 belongs to rank 3; you say 0", "go back"]),
    (owner_one_off, "wrong owner", ["position 8 belongs to rank 3; you say 4. It is in chunk 4 of 8"]),
    (owner_forgets_the_first_chunk, "wrong place", ["position 8 is number 2 of rank 3's positions", "you say 0"]),
    (owner_mirrors, "wrong place", ["position 8 is number 2 of rank 3's positions", "you say 3"]),
    (owner_rank_alone, "wrong shape", ["expected rank, place"]),
    (block_right, "passed", []),
    (block_pair_by_pair, "passed", []),
    (block_strict, "diagonal lost", ["queries [3], keys [3]", "> and <="]),
    (block_by_its_first, "pairs lost", ["Query 9 sees key 8", "the last query sees most"]),
    (block_sees_too_much, "mask forgotten", ["Query 2 must not see key 3"]),
    (block_computes_everything, "work wasted", ["queries [4, 9], keys [10]"]),
    (block_masks_everything, "mask wasted", ["queries [3], keys [3]", "Every query sees every key"]),
    (block_yes_or_no, "wrong shape", ['expected "all", "part" or "none"; it is True']),
    (ring_right, "passed", []),
    (ring_with_home, "passed", []),
    (ring_of_its_own_block, "own block only", ["the gradient dq is wrong", "the rank's own keys"]),
    (ring_own_gradients_at_home, "own block only", ["the gradient dk is wrong", "the rank's own queries"]),
    (ring_stops_before_home, "not home", ["gradients of rank r+1's keys", "one more step"]),
    (ring_keeps_what_it_finds, "not with its block", ["about all blocks", "that they are of"]),
    (ring_keys_go_home_too, "wrong traffic",
     ["each rank sent 48 elements in 6 messages; keys and values take P-1 steps", "96 or 120 elements over all ranks"]),
    (ring_gathers, "library used", ["comm.sendrecv"]),
    (ring_sends_first, "deadlock", ["a circle", "does both at once"]),
    (ring_local_softmax, "wrong gradient", ["the gradient dq is wrong"]),
    (ring_without_dv, "wrong shape", ["returned a tuple of 2, expected 3 arrays: dq, dk, dv"]),
]
EXERCISE = {"merge": "merge_softmax", "owner": "zigzag_owner", "block": "causal_block", "ring": "ring_backward"}


@pytest.mark.parametrize("function, diagnosis, says", WRONG, ids=[row[0].__name__ for row in WRONG])
def test_each_version_gets_its_diagnosis(function, diagnosis, says):
    verdict = examine(function, EXERCISE[function.__name__.partition("_")[0]])
    assert_diagnosed(verdict, diagnosis, says)


@pytest.mark.parametrize("name", EXERCISE.values())
def test_the_solution_passes_and_the_stub_is_not_implemented(name):
    assert_solution_passes_and_stub_is_not_implemented(name)
