"""What is sent: elements and messages of every collective and operator, as formulas.

n elements over P ranks; chunk k of them is [n*k//P, n*(k+1)//P). All counts are what one rank sends, or, where it says
"over all ranks", the group's sum. Bytes are elements times the size of one. Nothing here has ever seen an array: the
tests compare these numbers with what the ledger counted, and allow no difference.
"""


def chunk(n, P, k):
    """Elements of chunk k (mod P) of n over P ranks."""
    k %= P
    return n * (k + 1) // P - n * k // P


def ring_reduce_scatter(n, P, rank):
    """Elements that `rank` sends: everything but its own chunk. Over all ranks (P-1) n. (Patarasuk & Yuan 2009)"""
    return n - chunk(n, P, rank)


def ring_all_gather(n, P, rank):
    """Elements that `rank` sends: everything but its right neighbour's chunk. Over all ranks (P-1) n."""
    return n - chunk(n, P, rank + 1)


def ring_all_reduce(n, P, rank):
    """Elements that `rank` sends: a reduce-scatter and an all-gather. Over all ranks 2 (P-1) n."""
    return ring_reduce_scatter(n, P, rank) + ring_all_gather(n, P, rank)


def ring_messages(P, passes=1):
    """Messages that one rank sends in a ring of P ranks: P-1 a pass; an all-reduce is two passes."""
    return passes * (P - 1)


def doubling_all_reduce(n, P):
    """Elements sent over all ranks: lg K rounds of K ranks, K the largest power of two up to P, 2 (P-K) n to fold."""
    rounds = P.bit_length() - 1
    K = 2**rounds
    return n * (K * rounds + 2 * (P - K))


def doubling_messages(P):
    """Messages of that all-reduce, over all ranks."""
    return doubling_all_reduce(1, P)


def rabenseifner_all_reduce(n, P, rank):
    """Elements that `rank` sends: halving, everything but its own chunk; doubling, the chunks that it has, each round.

    Over all ranks 2 (P-1) n, as a ring: folding costs what fewer chunks save. (Rabenseifner 2004)
    """
    K = 2 ** (P.bit_length() - 1)
    rem = P - K
    if rank < 2 * rem and rank % 2 == 0:
        return n                                              # hands its array over, and sits out
    place = rank // 2 if rank < 2 * rem else rank - rem
    halving = n - chunk(n, K, place)
    first = lambda half: place // half * half                 # of the `half` chunks that the rank has by then
    doubling = sum(chunk(n, K, k) for half in powers_below(K) for k in range(first(half), first(half) + half))
    return halving + doubling + (n if rank < 2 * rem else 0)


def powers_below(K):
    """1, 2, 4, ... below K."""
    return [2**k for k in range((K - 1).bit_length())]


def rabenseifner_messages(P):
    """Messages over all ranks: 2 lg K for each of K, and 2 for each rank that folds."""
    rounds = P.bit_length() - 1
    return 2**rounds * 2 * rounds + 2 * (P - 2**rounds)


def hierarchical_all_reduce(n, N, M, rank):
    """Elements that `rank` of N * M sends, N a node: {"node": inside it, "nodes": between nodes}. (Cho et al. 2019)"""
    place, node = rank % N, rank // N
    mine = chunk(n, N, place)
    return {"node": ring_all_reduce(n, N, place), "nodes": ring_all_reduce(mine, M, node)}


def tree_all_reduce(n, P):
    """Elements sent over all ranks: every rank but one sends its sum up once, and gets the result down once."""
    return 2 * (P - 1) * n


def direct_all_gather(n, P, rank):
    """Elements that `rank` sends of the n that all have in the end: its own chunk, to every other."""
    return (P - 1) * chunk(n, P, rank)


def tree_broadcast(n, P):
    """Elements sent over all ranks: every rank but the root receives all n once."""
    return (P - 1) * n


def tree_gather(n, P):
    """Elements sent over all ranks to gather n to rank 0, or to scatter them from it, chunks as in a ring.

    Rank r > 0 sends the chunks of the block it heads: r to r + (lowest set bit of r) - 1.
    """
    return sum(n * min(r + (r & -r), P) // P - n * r // P for r in range(1, P))


def all_to_all(sizes, rank):
    """Elements that `rank` sends; sizes[k] go to rank k, its own stay."""
    return sum(sizes) - sizes[rank]


def tensor_parallel_mlp(rows, inputs, outputs, P, rank):
    """Elements that `rank` sends for one MLP, one step: {"forward": ..., "backward": ...}.

    Column-parallel, then row-parallel: one ring all-reduce of the output (rows, outputs) in forward and one of the
    input's gradient (rows, inputs) in backward, whatever the hidden size. (Shoeybi et al. 2019, section 3)
    """
    return {
        "forward": ring_all_reduce(rows * outputs, P, rank),
        "backward": ring_all_reduce(rows * inputs, P, rank),
    }


def tensor_parallel_block(b, s, h, t, rank, sequence_parallel=False, recompute="none"):
    """Elements that `rank` sends for one layer of a transformer: {"forward": ..., "backward": ...}.

    Two parts, attention and MLP. Each ends its forward and its backward in an all-reduce of b s h: together
    8 b s h (t-1)/t. (Shoeybi et al. 2019.) Sequence-parallel each gathers before and scatters after, forward and
    backward, which sends as much; and backward gathers the part's input once more: 10. (Korthikanti et al. 2022,
    section 4.2.2.) Full recomputation does the forward again, in backward: 12, and 14.
    b micro-batch, s sequence, h hidden, t ranks; s need not divide by t.
    """
    if sequence_parallel:
        gather, scatter = (b * h * ring(s, t, rank) for ring in (ring_all_gather, ring_reduce_scatter))
        forward, backward = 2 * (gather + scatter), 2 * (gather + scatter + gather)
    else:
        forward = backward = 2 * ring_all_reduce(b * s * h, t, rank)
    return {"forward": forward, "backward": backward + (forward if recompute == "full" else 0)}


def vocabulary_parallel_embedding(b, s, h, t, rank, sequence_parallel=False):
    """Elements that `rank` sends: the looked-up rows are summed forward. Sequence-parallel the sum is scattered, and
    its gradient gathered: half of it each way."""
    if sequence_parallel:
        return {"forward": b * h * ring_reduce_scatter(s, t, rank), "backward": b * h * ring_all_gather(s, t, rank)}
    return {"forward": ring_all_reduce(b * s * h, t, rank), "backward": 0}


def vocabulary_parallel_head(b, s, h, t, rank, sequence_parallel=False):
    """Elements that `rank` sends: the input's gradient is summed backward; sequence-parallel the input is gathered
    twice, forward and for the weight gradient, and its gradient scattered. Nothing grows with the vocabulary."""
    if sequence_parallel:
        gather, scatter = (b * h * ring(s, t, rank) for ring in (ring_all_gather, ring_reduce_scatter))
        return {"forward": gather, "backward": gather + scatter}
    return {"forward": 0, "backward": ring_all_reduce(b * s * h, t, rank)}


def vocabulary_parallel_loss(positions, t, rank, smoothing=False):
    """Elements that `rank` sends, in float32 or wider: a maximum for each position, then two sums, with label smoothing
    three. Backward needs nothing. To gather logits would be to send V (t-1)/t numbers a position."""
    return ring_all_reduce(positions, t, rank) + ring_all_reduce((3 if smoothing else 2) * positions, t, rank)


def sequence_parallel_gradients(h, layers, t, rank, norm_bias=True, positions=0):
    """Elements that `rank` sends once a step: the weight gradients of all norms, 2 L + 1, and of `positions` learned
    position embeddings, are sums over shards of the sequence; one all-reduce adds them up."""
    return ring_all_reduce(((2 * layers + 1) * (2 if norm_bias else 1) + positions) * h, t, rank)


def shared_heads_gradients(h, layers, heads, kv_heads, t, rank, bias=False):
    """Elements that `rank` sends once a step where t ranks have copies of kv_heads key and value heads: gradients are
    summed over the t / kv_heads ranks that share a head. 0 where there are no copies."""
    share = max(t // kv_heads, 1)
    return ring_all_reduce(layers * 2 * (h // heads) * (h + (1 if bias else 0)), share, rank % share)


def data_parallel(buckets, P, rank):
    """Elements of gradients that `rank` sends in one step, however many micro-batches: a ring all-reduce for each of
    the `buckets`, whose elements these are. 2 psi (P-1)/P where P divides all of them. (Li et al. 2020.)"""
    return sum(ring_all_reduce(n, P, rank) for n in buckets)


def data_parallel_counts(P):
    """Numbers of 8 bytes sent over all ranks in one step: how many tokens count, and their losses, by doubling."""
    return 2 * doubling_all_reduce(1, P)


def agreed_numbers(numbers, sizes):
    """Numbers sent over all ranks so that all agree on a norm or a verdict: one all-reduce by doubling over each of the
    groups that a rank belongs to, of these sizes (1 where it is alone), in a world of their product."""
    world = 1
    for size in sizes:
        world *= size
    return sum(numbers * (world // size) * doubling_all_reduce(1, size) for size in sizes)


def padded(n, N, alignment=None):
    """Elements of a ZeRO unit of n: the next multiple of `alignment`, the N ranks that share it unless given."""
    alignment = N if alignment is None else alignment
    return -(-n // alignment) * alignment


def zero_step(units, N, rank, stage, microbatches=1, gathers=None, replicas=1, replica=0, alignment=None):
    """Elements that `rank` of N sends in one step of ZeRO: {"gradients", "parameters", "replicas"}, each in its dtype.

        stage    gradients    parameters    in all, in psi (N-1)/N, of k micro-batches
        0        2            -             2           all-reduce
        1        1            1             2           reduce-scatter, and gather what was updated
        2        k            1             k + 1       reduce-scatter each micro-batch
        3        k            2 k           3 k         and gather for forward and for backward

    units       elements of each, without padding; psi is their padded sum
    gathers     stage 3: how often a micro-batch gathers each unit; 2 unless given, 4 for a tied embedding
    replicas    R copies, `replica` the rank's: an all-reduce of its shards over them, once a step (hybrid sharding)
    (Rajbhandari et al. 2020, section 7; k: DeepSpeed's no_sync is "incompatible with ZeRO stage 2/3".)
    """
    cut = N if stage else 1
    sizes = [padded(n, cut, alignment) for n in units]
    once = sum(ring_reduce_scatter(n, N, rank) for n in sizes)
    gathers = [2] * len(sizes) if gathers is None else gathers
    whole = sum(ring_all_reduce(n, N, rank) for n in sizes)
    again = sum(times * ring_all_gather(n, N, rank) for times, n in zip(gathers, sizes))
    return {
        "gradients": (whole, once, microbatches * once, microbatches * once)[stage],
        "parameters": (0, once, once, microbatches * again)[stage],
        "replicas": sum(ring_all_reduce(n // cut, replicas, replica) for n in sizes),
    }
