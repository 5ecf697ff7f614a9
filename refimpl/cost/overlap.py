"""How long a step takes when gradients are summed during backward: bucket by bucket, and the best number of buckets.

    backward      |  1  |  2  |  3  |  4  |               T seconds, a quarter of the gradients after each quarter
    all-reduces         |==1==|==2==|==3==|==4==|         each 2 (P-1) (alpha + its bytes beta / P) = A + B/K
                                          ^ T   ^ T + A + B/K

With K equal buckets bucket k begins when its gradients are ready, k T/K, and bucket k-1 has ended. The step ends with

    max(T + A + B/K,          computing decides: every bucket but the last hides behind backward
        T/K + K A + B)        the network decides: it begins after the first bucket and is busy from then on

of which the first falls with K, as less is left over at the end, and the second rises from K = sqrt(T/A) on, as every
bucket pays the latencies. They cross where a bucket's all-reduce takes as long as a bucket's backward, K = (T - B)/A.
So the best number of buckets is the larger of sqrt(T/A) and (T - B)/A, at least 1.

T seconds of backward, G bytes of gradients, P ranks, alpha and beta of their links, A = 2 (P-1) alpha latencies and
B = 2 (P-1)/P G beta seconds of bytes. All of it is arithmetic on the alpha-beta model; the tests compare with the
virtual clock of the buckets as they run. (Buckets and their best size, measured: Li et al. 2020, section 5.)
"""

import math

from refimpl.cost.traffic import chunk


def bucketed_step(T, G, K, P, alpha, beta):
    """Seconds of backward and K equal buckets, together. Exact where P divides a bucket's elements."""
    A, B = _latency(P, alpha), _bytes(G, P, beta)
    return max(T + A + B / K, T / K + K * A + B)


def best_buckets(T, G, P, alpha, beta):
    """The best number of buckets, a real number, 1 or more: the larger of sqrt(T/A) and (T - B)/A.

    inf where latencies cost nothing. To both sides time only grows, so the best whole number is its floor or ceiling.
    """
    A, B = _latency(P, alpha), _bytes(G, P, beta)
    return max(1.0, math.sqrt(T / A), (T - B) / A) if A else math.inf


def hidden(T, G, K, P, alpha, beta):
    """Seconds of communication that do not make the step longer: K A + B, less what the step takes beyond T."""
    exposed = bucketed_step(T, G, K, P, alpha, beta) - T
    return K * _latency(P, alpha) + _bytes(G, P, beta) - exposed


def _latency(P, alpha):
    return 2 * (P - 1) * alpha


def _bytes(G, P, beta):
    return 2 * (P - 1) / P * G * beta


# Buckets of any sizes, ready at any times


def timeline(ready, elements, P, alpha, beta, item=4):
    """When each bucket's ring all-reduce begins and ends, over all ranks: a list of (begin, end).

    ready       seconds at which each bucket is full: one number, or one for each rank
    elements    of each bucket, of `item` bytes
    A bucket begins on a rank when it is ready there and the one before has ended there. The last end, or the end of
    backward if that is later, ends the step.
    """
    free = [0.0] * P                                          # when the rank's background work is done
    found = []
    for when, n in zip(ready, elements):
        begins = [max(free[r], when[r] if isinstance(when, tuple | list) else when) for r in range(P)]
        free = ring_ends(begins, n, P, alpha, beta * item)
        found.append((min(begins), max(free)))
    return found


def ring_ends(begins, n, P, alpha, beta):
    """When each rank has the result of a ring all-reduce of n elements that it begins at begins[rank].

    2 (P-1) steps; in step s rank r sends chunk r-1-s (then, to gather, chunk r-s) to the right, once its port is free,
    and waits for one from the left. beta seconds per element.
    """
    known, sent = list(begins), list(begins)                  # when a rank may send the next chunk; when its port may
    for step in range(2 * (P - 1)):
        k = -1 - step if step < P - 1 else P - 1 - step       # of the chunk that rank 0 sends
        sent = [max(known[r], sent[r]) + chunk(n, P, r + k) * beta for r in range(P)]
        known = [max(known[r], sent[r - 1] + alpha) for r in range(P)]
    return known


# What backward has to compute


def backward_flops(b, s, h, heads, ffn, V, layers, kv_heads=None, gated=False):
    """Matrix products of a transformer's backward: {"head": ..., "layer": ...}, FLOPs, nothing recomputed.

    4 b s for each weight, two products; attention's scores and context 8 b s^2 h, counted whole though half is masked.
    With h = heads d, ffn = 4 h: 48 b s h^2 + 8 b s^2 h a layer. (Narayanan et al. 2021, appendix: 72 and 12, forward
    included.)
    """
    d = h // heads
    weights = h * (heads + 2 * (kv_heads or heads)) * d + h * h + (3 if gated else 2) * h * ffn
    return {"head": 4 * b * s * h * V, "layer": 4 * b * s * weights + 8 * b * s * s * h}
