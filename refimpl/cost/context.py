"""What context parallelism costs: bytes, work and time of ring, gathered and Ulysses attention, and what a rank keeps.

    KV = 2 b c n d elements, c = s/P: a rank's keys and values         P ranks, forward; backward in brackets

               sent by a rank                                             time
    ring       (P-1) KV  [(P-1) KV and (P-1) of gradients]                sum of max(C, T) over P-1 steps, + C
    gather     the same                                                   (P-1) T + all work
    Ulysses    (P-1)/P b c d (2 h + 2 max(n, P))  [the same]              2 all-to-alls + all work

    C = 4 b h d pairs / flops     a step's work: 10 in place of 4 backward        T = alpha + KV bytes beta

    pairs of a causal step        own block         owner's rank lower     higher        in all steps
    contiguous                    c (c+1)/2         c^2                    0             rank r: c (c+1)/2 + r c^2
    striped                       c (c+1)/2         c (c+1)/2              c (c-1)/2     P c (c-1)/2 + (r+1) c
    zigzag                        c (c+1)/2         c^2/2                  c^2/2         (s+1) c/2, whatever r

Gradients travel in float32 or wider, whatever the keys are stored in. (Liu et al. 2023; Brandon et al. 2023; Jacobs et
al. 2023; Grattafiori et al. 2024, section 3.3.2. Pairs and efficiency: derived here, counted by the tests.)
Letters: b sequences, s positions, P ranks, h query heads, n key-value heads, d features a head; U of P ranks that
exchange heads. Sizes in bytes, `item` of an element.
"""

FORWARD, BACKWARD = 4, 10                          # FLOPs for each head, feature, sequence and pair of positions


# Work


def step_pairs(s, P, rank, step, layout="zigzag", causal=True):
    """Pairs of a query and a key it sees that `rank` meets in a step of the ring: with the block of rank - step."""
    c = s // P
    if not causal:
        return c * c
    if step == 0:
        return c * (c + 1) // 2
    later = step > rank                            # the owner is (rank - step) mod P: a higher rank, around the corner
    return {
        "contiguous": 0 if later else c * c,
        "striped": c * (c - 1) // 2 if later else c * (c + 1) // 2,
        "zigzag": c * c // 2,
    }[layout]


def pairs(s, P, rank, layout="zigzag", causal=True):
    """All pairs of `rank`: over the steps of a ring, or at once."""
    return sum(step_pairs(s, P, rank, step, layout, causal) for step in range(P))


def efficiency(s, P, layout="zigzag"):
    """Share of the time in which a rank works, on average, if every step of a causal ring takes as long as its slowest.

    contiguous (s+1) / ((2P-1) s/P + 1), which tends to P/(2P-1)    striped (s+1) / (s+P)    zigzag 1
    """
    slowest = sum(max(step_pairs(s, P, rank, step, layout) for rank in range(P)) for step in range(P))
    return s * (s + 1) / 2 / (P * slowest)


def attention_flops(b, heads, d, pairs):
    """{"forward": ..., "backward": ...} of so many pairs of positions."""
    return {"forward": FORWARD * b * heads * d * pairs, "backward": BACKWARD * b * heads * d * pairs}


# Bytes sent by a rank for one layer: {"forward": ..., "backward": ...}


def kv_block(b, s, kv_heads, d, P):
    """Elements of a rank's keys and values."""
    return 2 * b * (s // P) * kv_heads * d


def ring_attention(b, s, kv_heads, d, P, item=2):
    """Bytes: P-1 blocks; backward P-1 blocks again, and P-1 of gradients. No query, and no head of a query, travels."""
    forward = (P - 1) * kv_block(b, s, kv_heads, d, P) * item
    return {"forward": forward, "backward": forward + forward // item * max(item, 4)}


def gather_attention(b, s, kv_heads, d, P, item=2):
    """Bytes, as many as the ring: an all-gather; backward the same again, and a reduce-scatter of gradients."""
    return ring_attention(b, s, kv_heads, d, P, item)


def ulysses_attention(b, s, heads, kv_heads, d, P, item=2):
    """Bytes: q, k, v, and out to each other rank; backward their gradients. No rank has less than one kv head."""
    qkv, out = ulysses_parts(b, s, heads, kv_heads, d, P, item)
    return dict.fromkeys(("forward", "backward"), (P - 1) * (qkv + out))


def ulysses_parts(b, s, heads, kv_heads, d, P, item=2):
    """Bytes of the message to one other rank: of q, k, v (or their gradients), and of out (or its gradient)."""
    tokens = b * (s // P) * d * item
    return tokens * (heads // P + 2 * max(kv_heads // P, 1)), tokens * (heads // P)


def hybrid_attention(b, s, heads, kv_heads, d, P, U, item=2):
    """Bytes: Ulysses among U ranks, which share s U/P positions; among P/U ranks a ring of what each then has."""
    exchange = ulysses_attention(b, s * U // P, heads, kv_heads, d, U, item)
    ring = ring_attention(b, s, max(kv_heads // U, 1), d, P // U, item)
    return {way: exchange[way] + ring[way] for way in exchange}


# Time


def ring_seconds(compute, transfer):
    """Forward, if all ranks have as much to do: a block travels while one is computed with; nothing after the last.

    compute     seconds of each of the P steps        transfer    alpha + bytes of a block * beta
    """
    return sum(max(seconds, transfer) for seconds in compute[:-1]) + compute[-1]


def ring_clocks(compute, alpha, kv, gradients=None):
    """Forward, or with `gradients` backward, for each rank, whatever there is to do: compute[rank][step] seconds.

    kv, gradients    seconds that a block, and its gradients, take to leave: bytes * beta; a port sends one at a time
    A rank sends a block on when it begins to compute with it, and begins with the next when that is here. Gradients
    follow their block one step later, with what the rank adds. The own block's stay at home, so none leave in step 0;
    no block does in the last one; the last gradients go home alone. If every step's work takes longer than
    alpha + kv + gradients, all is hidden but the way home: the work + alpha + gradients.
    """
    P = len(compute)
    now, free, addends = [0] * P, [0] * P, None

    def send(seconds):
        """When that which all ranks send now is at their right neighbours'."""
        free[:] = [max(here, port) + seconds for here, port in zip(now, free)]
        return [free[rank - 1] + alpha for rank in range(P)]

    for step in range(P):
        block = send(kv) if step < P - 1 else [0] * P
        now = [here + seconds[step] for here, seconds in zip(now, compute)]
        if gradients is not None and step > 0:
            now = now if addends is None else list(map(max, now, addends))
            addends = send(gradients)
        now = list(map(max, now, block))
    return now if addends is None else list(map(max, now, addends))


def gather_seconds(P, compute, alpha, kv, gradients=None):
    """Forward; with `gradients`, backward: P-1 messages of a block before computing, P-1 of gradients after it."""
    after = 0 if gradients is None else alpha + gradients
    return (P - 1) * (alpha + kv) + compute + (P - 1) * after


def ulysses_seconds(P, compute, alpha, qkv, out):
    """Forward or backward: P-1 messages before computing and P-1 after it.

    qkv, out   seconds that one of them takes to leave, the parts of q, k, v and of out; alike for their gradients
    compute    of all positions and the rank's heads; of a hybrid, its ring's clock
    """
    return (P - 1) * (alpha + qkv) + compute + (P - 1) * (alpha + out)


def hiding_block(flops, beta, group=1, item=2, causal=False):
    """The fewest positions on a rank, c = s/P, with which a step's work hides a block's transfer, latency apart.

    flops a second, beta seconds a byte, group query heads for each key-value head. F/B of Liu et al. 2023, section 3,
    for a group of 1 in 16 bits; causal and balanced twice as many, as half the work is left.
    """
    return item * flops * beta / (2 * group) * (2 if causal else 1)


# Memory


def kept(b, s, heads, kv_heads, d, P, item=2, ulysses=1):
    """Bytes that attention keeps on a rank between forward and backward: q, k, v, out, and a float32 or wider a row.

    Of every kind, O(s/P): not O(1), as P has to grow with s. With `ulysses` ranks that share heads there are copies.
    """
    copies = max(ulysses // kv_heads, 1)
    return b * (s // P) * (2 * (heads + kv_heads * copies) * d * item + heads * max(item, 4))
