"""What exercises 43 and 44 are tried on: bytes counted while ZeRO runs, and schedules timed action by action.

The first case of each is one to follow by hand.
"""

from functools import cache, partial

import numpy as np

from refimpl.course.exercises.costs_verdict import judge_numbers
from refimpl.course.exercises.pipeline_cases import Trial
from refimpl.measure.ledger import Ledger
from refimpl.model.adam import Adam
from refimpl.parallel.zero import Zero
from refimpl.pipeline import build, simulate
from refimpl.precision import Precision
from refimpl.world.local import run_local

# -- bytes of a step --------------------------------------------------------------------------------------------------

ZERO = ((12, 4, 0, 1, 4, 2), (8, 2, 1, 1, 4, 2), (12, 4, 1, 3, 4, 2), (12, 4, 2, 3, 4, 2), (24, 4, 3, 3, 2, 2),
        (30, 3, 3, 5, 4, 2), (30, 3, 0, 4, 4, 2), (6, 1, 2, 2, 4, 2))       # psi, ranks, stage, k, bytes of each
DTYPES = {2: "bfloat16", 4: "float32"}


@cache
def sent(psi, ranks, stage, k, gradient, parameter):
    """Bytes that rank 0 sends in a step of k micro-batches of a model of one unit, counted."""
    def program(comm):
        zero = Zero({"w": np.zeros(psi, np.float32)}, [["w"]], comm, stage, Adam(),
                    Precision(DTYPES[parameter], DTYPES[gradient]))
        for microbatch in range(k):
            for _ in ("forward", "backward"):
                zero.parameters(0)
                zero.release(0)
            zero.reduce(0, {}, last=microbatch == k - 1)
        zero.step()

    log = Ledger()
    run_local(program, ranks, ledger=log)
    return log.bytes_sent(rank=0)


def zero_suspects(psi, ranks, stage, k, gradient, parameter):
    """What known mistakes come to."""
    lap = psi * (ranks - 1) // ranks
    right = ((2, 0), (1, 1), (k, 1), (k, 2 * k))[stage]
    bytes_of = lambda laps, lap=lap, g=gradient, p=parameter: (lap * (laps[0] * g + laps[1] * p),)
    two_laps = "an all-reduce is two laps, a reduce-scatter is one"
    each_time = "each micro-batch's gradients are reduced"
    wrong = (
        [(two_laps, (1, 0)), ("gradients are reduced once for a step", (2 * k, 0))],
        [(two_laps, (2, 1)), ("the updated parameters have to be gathered", (1, 0)),
         ("gradients are reduced once for a step, not for each micro-batch", (k, 1))],
        [(two_laps, (2 * k, 1)), (each_time, (1, 1)), ("the updated parameters have to be gathered", (k, 0))],
        [(two_laps, (2 * k, 2 * k)), (each_time, (1, 2 * k)),
         ("forward and backward each gather all parameters", (k, k)),
         ("each micro-batch gathers the parameters anew", (k, 2))],
    )[stage]
    return [*[("laps", cause, bytes_of(some)) for cause, some in wrong],
            ("wrong dtype", "parameters are counted in the dtype of gradients", bytes_of(right, p=gradient)),
            ("wrong dtype", "gradients are counted in the dtype of parameters", bytes_of(right, g=parameter)),
            ("limit of many ranks", "this is what endless many ranks would send", bytes_of(right, lap=psi)),
            ("over all ranks", "this is what all ranks send together", bytes_of(right, lap=lap * ranks)),
            ("elements", "these are elements", bytes_of(right, g=1, p=1))]


def zero_bytes():
    """All four stages, gradients of 2 and of 4 bytes."""
    return [Trial(words := f"{psi} parameters of {parameter} bytes, ZeRO {stage} on {ranks} rank{'s' * (ranks > 1)}, "
                           f"{k} micro-batch{'es' * (k > 1)}, gradients of {gradient} bytes",
                  lambda function, case=(psi, ranks, stage, k, gradient, parameter): function(*case),
                  partial(judge_numbers, words, ("bytes",), (sent(psi, ranks, stage, k, gradient, parameter),),
                          zero_suspects(psi, ranks, stage, k, gradient, parameter)))
            for psi, ranks, stage, k, gradient, parameter in ZERO]


# -- interleaving -----------------------------------------------------------------------------------------------------

PRICES = ((4, 8, 1), (4, 8, 2), (2, 6, 3), (8, 32, 4), (4, 16, 4), (1, 4, 1))      # ranks, micro-batches, chunks


def schedule_price():
    """Counted in the timeline of the list of actions."""
    trials = []
    for p, m, v in PRICES:
        t = simulate(build("interleaved", p, m, v) if v > 1 else build("1f1b", p, m))
        takes, messages, kept = expected = t.makespan, t.messages["forward"], t.peak_activations[0]
        suspects = [("bubble", "the chunks do not shorten the bubble here", (3 * m + 3 * (p - 1), messages, kept)),
                    ("bubble", "this is the work without the bubble", (3 * m, messages, kept)),
                    ("bubble", "a rank waits for the p - 1 others", (3 * m + 3 * p / v, messages, kept)),
                    ("messages", "these are the boundaries of plain 1F1B", (takes, m * (p - 1), kept)),
                    ("messages", "v chunks on each rank are pv stages, with pv - 1 boundaries between them",
                     (takes, m * v * (p - 1), kept)),
                    ("messages", "the last stage sends nothing forward", (takes, m * p * v, kept)),
                    ("messages", "both directions are counted", (takes, 2 * messages, kept)),
                    ("kept", "this is what plain 1F1B keeps", (takes, messages, p)),
                    ("kept", "this is what GPipe keeps", (takes, messages, m)),
                    ("kept", "chunks are counted; each is 1/v of what a rank has", (takes, messages, v * kept))]
        words = f"p={p}, m={m}, v={v}"
        trials.append(Trial(words, lambda function, case=(p, m, v): function(*case),
                            partial(judge_numbers, words, ("time", "messages", "kept"), expected, suspects)))
    return trials


TRIALS = {"zero_bytes": zero_bytes, "schedule_price": schedule_price}
