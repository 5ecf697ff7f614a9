"""All-to-all: every part reaches its rank, whatever the sizes, and one's own part never leaves."""

import numpy as np
import pytest
from backends import device_array
from numpy.testing import assert_array_equal

from refimpl import Ledger, run
from refimpl.arrays import to_host
from refimpl.collectives import all_to_all
from refimpl.cost import traffic


def part(src, dst, dtype="float64"):
    """What src sends to dst: uneven, some empty, of another shape each time, and not to be mistaken."""
    shape = ((src + 2 * dst) % 4, (src + dst) % 3 + 1)
    return (np.arange(np.prod(shape)).reshape(shape) + 10 * src + dst).astype(dtype)


@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
def test_rank_r_gets_part_r_of_every_rank(P, world, xp):
    dtypes = ["float64", "int8", "bool", "float16"]

    def program(comm):
        found = []
        for dtype in dtypes:
            parts = [device_array(xp, part(comm.rank, dst, dtype)) for dst in range(P)]
            received = all_to_all(parts, comm)
            found.append(([to_host(x) for x in received], [to_host(x) for x in parts]))
        return found

    for rank, found in enumerate(run(program, P)):
        for dtype, (received, parts) in zip(dtypes, found, strict=True):
            for other in range(P):
                assert_array_equal(received[other], part(other, rank, dtype))
                assert_array_equal(parts[other], part(rank, other, dtype))                     # unchanged
                assert received[other].dtype == dtype


@pytest.mark.parametrize("P", [1, 3])
def test_the_rows_of_an_array_are_parts_too_and_what_comes_is_ones_own(P):
    def program(comm):
        x = np.arange(2.0 * P).reshape(P, 2) + 100 * comm.rank
        received = all_to_all(x, comm)
        assert not any(np.shares_memory(x, y) for y in received)
        return received

    for rank, received in enumerate(run(program, P)):
        assert_array_equal(received, [[2 * rank + 100 * src, 2 * rank + 1 + 100 * src] for src in range(P)])


@pytest.mark.parametrize("P", [2, 4])
def test_strided_and_transposed_parts_arrive_as_they_look(P, world, xp):
    def program(comm):
        x = device_array(xp, np.arange(6 * P * 4.0).reshape(6, 4 * P) + comm.rank)
        return [to_host(y) for y in all_to_all([x[::2, k::P].T for k in range(P)], comm)]

    whole = np.arange(6 * P * 4.0).reshape(6, 4 * P)
    for rank, received in enumerate(run(program, P)):
        for src, y in enumerate(received):
            assert_array_equal(y, whole[::2, rank::P].T + src)


@pytest.mark.parametrize("P", range(1, 10))
def test_a_rank_sends_all_parts_but_its_own_in_one_message_to_each(P):
    log = Ledger()
    run(lambda comm: all_to_all([part(comm.rank, dst, "float32") for dst in range(P)], comm), P, ledger=log)
    for rank in range(P):
        assert log.bytes_sent(rank=rank) == 4 * traffic.all_to_all([part(rank, dst).size for dst in range(P)], rank)
        assert [log.messages(rank=rank, dst=dst) for dst in range(P)] == [int(dst != rank) for dst in range(P)]
    assert log.bytes_sent(collective="all_to_all") == log.bytes_sent()
