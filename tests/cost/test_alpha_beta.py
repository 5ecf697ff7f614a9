"""Seconds: the virtual clock of the algorithms as they run, the formulas of cost/, and a simulation of its own agree.

Three statements that know nothing of each other. The simulation below is told each rank's messages as a list, from the
papers' pictures, and has an idea of a port of its own: where a recursion and the operator share a mistake, it differs.
"""

import time
from collections import defaultdict, deque

import numpy as np
import pytest

from refimpl import Ledger, Link, Network, run
from refimpl.collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter, scatter
from refimpl.cost import alpha_beta

LINKS = [(1e-5, 1e-9), (1e-6, 1e-6), (0.0, 1e-7), (3e-6, 1e-7), (2e-6, 0.0)]         # both may be all that counts
ROWS = 3                                                                              # elements of each rank's chunk


def seconds(program, P, alpha, beta, rendezvous=True, ledger=None):
    """When the last rank is done, on free links."""
    def timed(comm):
        program(comm)
        return comm.clock

    return max(run(timed, P, ledger=ledger, network=Network(Link(alpha, beta)), rendezvous=rendezvous))


def close(a, b):
    return abs(a - b) <= 1e-12 * max(abs(a), abs(b))


COLLECTIVES = {                                                # name: (the call, what cost/ says of P, alpha, t)
    "ring": (lambda x, mine, c: all_reduce(x, c, algorithm="ring"), alpha_beta.ring_all_reduce),
    "reduce_scatter": (lambda x, mine, c: reduce_scatter(x, c), alpha_beta.ring_pass),
    "all_gather": (lambda x, mine, c: all_gather(mine, c), alpha_beta.ring_pass),
    "doubling": (lambda x, mine, c: all_reduce(x, c, algorithm="doubling"), alpha_beta.doubling_all_reduce),
    "broadcast": (lambda x, mine, c: broadcast(x, c), alpha_beta.tree_broadcast),
    "gather": (lambda x, mine, c: gather(mine, c), alpha_beta.tree_gather),
    "scatter": (lambda x, mine, c: scatter(x if c.rank == 0 else None, c), alpha_beta.tree_scatter),
    "all_to_all": (lambda x, mine, c: all_to_all([mine] * c.size, c), alpha_beta.all_to_all),
    "barrier": (lambda x, mine, c: c.barrier(), lambda P, alpha, t: alpha_beta.barrier(P, alpha)),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("rendezvous", [True, False])
def test_the_virtual_clock_says_what_the_formula_says(name, rendezvous):
    call, formula = COLLECTIVES[name]
    for P in range(1, 18):
        x = np.zeros(ROWS * P)
        for alpha, beta in LINKS:
            counted = seconds(lambda comm, x=x: call(x, x[:ROWS], comm), P, alpha, beta, rendezvous)
            assert close(counted, formula(P, alpha, x.nbytes * beta)), (P, alpha, beta)


@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_powers_of_two_take_what_the_textbooks_say(P):
    """Thakur, Rabenseifner & Gropp 2005, without their gamma; ring: Patarasuk & Yuan 2009. n elements of 8 bytes."""
    n, alpha, beta, lg = 3 * P, 3e-6, 2e-9, {1: 0, 2: 1, 4: 2, 8: 3}[P]
    textbook = {
        "ring": 2 * (P - 1) * (alpha + n / P * 8 * beta),
        "reduce_scatter": (P - 1) * alpha + (P - 1) / P * n * 8 * beta,
        "all_gather": (P - 1) * alpha + (P - 1) / P * n * 8 * beta,
        "doubling": lg * (alpha + n * 8 * beta),
        "broadcast": lg * (alpha + n * 8 * beta),
        "gather": lg * alpha + (P - 1) / P * n * 8 * beta,
        "scatter": lg * alpha + (P - 1) / P * n * 8 * beta,
        "all_to_all": (P - 1) * (alpha + n / P * 8 * beta),
        "barrier": lg * alpha,
    }
    assert textbook.keys() == COLLECTIVES.keys()
    x = np.zeros(n)
    for name, (call, formula) in COLLECTIVES.items():
        assert close(seconds(lambda comm, call=call: call(x, x[:3], comm), P, alpha, beta), textbook[name]), name
        assert close(formula(P, alpha, n * 8 * beta), textbook[name]), name


@pytest.mark.parametrize("P", [1, 2, 3, 5, 6, 7, 9])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_ring_takes_its_textbook_time_for_any_number_of_ranks(P, dtype):
    n, alpha, beta = 4 * P, 1e-6, 1e-9
    counted = seconds(lambda comm: all_reduce(np.zeros(n, dtype), comm, algorithm="ring"), P, alpha, beta)
    assert close(counted, 2 * (P - 1) * (alpha + n / P * np.dtype(dtype).itemsize * beta))


def test_three_ranks_by_hand():
    """Doubling: 1 takes in the array of 0, right behind it that of 2, and gives the result back behind what it sent
    to 2. Broadcast: 0 sends to 2, and right behind it to 1."""
    x, a, b = np.zeros(5), 4e-6, 1e-6
    t = 5 * 8 * b
    for measured, formula, by_hand in (
            (lambda comm: all_reduce(x, comm, algorithm="doubling"), alpha_beta.doubling_all_reduce, 2 * a + 3 * t),
            (lambda comm: broadcast(x, comm), alpha_beta.tree_broadcast, a + 2 * t)):
        assert close(seconds(measured, 3, a, b), by_hand)
        assert close(formula(3, a, t), by_hand)


@pytest.mark.parametrize("P", [256])
def test_a_ring_of_hundreds_of_ranks_takes_its_textbook_time_and_little_of_ours(P):
    began = time.process_time()
    log = Ledger()
    program = lambda comm: all_reduce(np.ones(P), comm, algorithm="ring")
    counted = seconds(program, P, 1e-6, 1e-9, rendezvous=False, ledger=log)
    assert close(counted, 2 * (P - 1) * (1e-6 + 8 * 1e-9))
    assert log.messages() == 2 * P * (P - 1)
    assert time.process_time() - began < 30


# -- a simulation in whole ticks --------------------------------------------------------------------------------------

def simulate(programs, alpha):
    """When the last rank is done. programs[r] is a list of ("send", to whom, ticks) and ("recv", from whom).

    A message leaves when the last one has left; its head is there alpha ticks later; it is taken in from the first tick
    on after which the receiver's port is free for as many ticks as it takes; ports are booked in the receiver's order.
    """
    ranks = range(len(programs))
    todo, clock, free = [deque(program) for program in programs], [0 for _ in ranks], [0 for _ in ranks]
    taken, mail = [set() for _ in ranks], defaultdict(deque)
    while any(todo):
        for r in ranks:
            while todo[r] and (todo[r][0][0] == "send" or mail[todo[r][0][1], r]):
                verb, other, *ticks = todo[r].popleft()
                if verb == "send":
                    leaves = max(clock[r], free[r])
                    free[r] = leaves + ticks[0]
                    mail[r, other].append((leaves + alpha, ticks[0]))
                else:
                    head, ticks = mail[other, r].popleft()
                    while taken[r] & set(range(head, head + ticks)):
                        head += 1
                    taken[r] |= set(range(head, head + ticks))
                    clock[r] = max(clock[r], head + ticks)
    return max(clock)


def ring(P, c):
    return [[("send", (r + 1) % P, c), ("recv", (r - 1) % P)] * (2 * (P - 1)) for r in range(P)]


def doubling(P, c):
    K = 2 ** (P.bit_length() - 1)
    rem, t = P - K, P * c
    inside = [r for r in range(P) if r >= 2 * rem or r % 2]
    programs = [[("send", r + 1, t), ("recv", r + 1)] if r not in inside else [] for r in range(P)]
    for place, r in enumerate(inside):
        programs[r] += [("recv", r - 1)] if r < 2 * rem else []
        for bit in range(K.bit_length() - 1):
            programs[r] += [("send", inside[place ^ 2**bit], t), ("recv", inside[place ^ 2**bit])]
        programs[r] += [("send", r - 1, t)] if r < 2 * rem else []
    return programs


def below(r, P):
    """The ranks that r talks down to in a binomial tree, nearest first, and how many ranks each of them stands for."""
    lowest = r & -r or P
    return [(r + 2**k, min(2**k, P - r - 2**k)) for k in range(P.bit_length()) if 2**k < lowest and r + 2**k < P]


def down(P, ticks):
    return [[("recv", r - (r & -r))] * (r > 0)
            + [("send", other, ticks(ranks)) for other, ranks in reversed(below(r, P))] for r in range(P)]


def up(P, c):
    return [[("recv", other) for other, _ in below(r, P)]
            + [("send", r - (r & -r), c * min(r & -r, P - r))] * (r > 0) for r in range(P)]


def exchange(P, c):
    return [[step for d in range(1, P) for step in (("send", (r + d) % P, c), ("recv", (r - d) % P))] for r in range(P)]


SIMULATED = {                                            # c ticks for each rank's share, P * c for the whole array
    alpha_beta.ring_all_reduce: ring,
    alpha_beta.doubling_all_reduce: doubling,
    alpha_beta.tree_broadcast: lambda P, c: down(P, lambda ranks: P * c),
    alpha_beta.tree_scatter: lambda P, c: down(P, lambda ranks: ranks * c),
    alpha_beta.tree_gather: up,
    alpha_beta.all_to_all: exchange,
}


@pytest.mark.parametrize("formula", SIMULATED)
def test_the_recursions_agree_with_a_simulation_that_knows_only_who_sends_to_whom(formula):
    for P in range(1, 18):
        for alpha, c in [(1, 1), (7, 2), (2, 5), (0, 1), (3, 0), (24, 8)]:
            assert simulate(SIMULATED[formula](P, c), alpha) == formula(P, alpha, P * c), (P, alpha, c)


def test_a_block_that_comes_early_waits_for_those_before_it():
    """Five ranks, blocks of 24 ticks: those of ranks 1 and 4 come at 1, that of 2 and 3 at 26. Rank 0 takes them in at
    1, 74 and 26: in the gap from 25 to 26 there is no room for the block of rank 4."""
    assert alpha_beta.tree_gather(5, alpha=1, t=5 * 24) == 98
