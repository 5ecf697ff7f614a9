"""The vocabulary cut over tp: no rank has the whole table, and nobody ever has a whole row of logits.

    V = 10 ids on 4 ranks, padded to 12      rank 0: 0 1 2    1: 3 4 5    2: 6 7 8    3: 9 - -

    embedding        a rank looks up the ids that it has, 0 for the others; sum over ranks
    unembedding      logits of its own ids: column-parallel, nothing to send forward
    cross-entropy    m = max over ranks of max z_r                               n numbers, one for each position
                     sum over ranks of sum exp(z_r - m) and the target's z_r     2 n; with sum z_r, for smoothing, 3 n
                     -log p[t] = log sum exp(z - m) - (z[t] - m)

so the loss sends 3 or 4 numbers a position, where gathering logits would send V. Padding ids have no probability, take
no part in the max, in smoothing (eps/V counts the V real classes) or in any gradient; a rank may have nothing else.
(Shoeybi et al. 2019, section 3; Megatron pads to a multiple of 128 tp, so that products have good sizes.)

Under sequence parallelism the embedding ends in a reduce-scatter, and the unembedding begins with an all-gather.
Letters: ... positions, n their number, V ids, h features; a subscript r marks what rank r holds.
"""

from refimpl.arrays import array_namespace, check_indices
from refimpl.collectives import all_reduce
from refimpl.model import embedding as single
from refimpl.model.loss import IGNORED, check
from refimpl.parallel import sequence, tensor
from refimpl.precision import narrow, wide


def padded(vocabulary, size, multiple=1):
    """How many ids `vocabulary` becomes so that each of `size` ranks has as many, a multiple of `multiple`."""
    for name, value in (("vocabulary", vocabulary), ("tp", size), ("multiple", multiple)):
        if value < 1:
            raise ValueError(f"{name}={value}: expected 1 or more; nearest 1")
    return -(-vocabulary // (size * multiple)) * size * multiple


def shard_table(w, rank, size, multiple=1):
    """The ids of a table that `rank` of `size` has, padding ids 0.  w (V, h)  ->  (V_r, h), a copy, V_r equal on all"""
    tensor.check_rank(rank, size)
    each = padded(w.shape[0], size, multiple) // size
    mine = w[rank * each:(rank + 1) * each]
    xp = array_namespace(w)
    return xp.concatenate([mine, xp.zeros((each - mine.shape[0], *w.shape[1:]), w.dtype)])


def unshard_table(shards, vocabulary):
    """The whole table (or gradient) without the padding: shard_table's inverse.

    shards: each rank's, in order  ->  (vocabulary, h), a copy    ValueError for shards of too few ids
    """
    check_share(shards[0].shape[0], vocabulary, len(shards))
    return array_namespace(*shards).concatenate(shards)[:vocabulary].copy()


def _local(ids, each, comm):
    """ids as rows of the rank's own table, 0 where it has not got them, and where it has: two arrays of ids' shape."""
    xp = array_namespace(ids)
    local = ids.astype(xp.int64) - comm.rank * each
    here = (local >= 0) & (local < each)
    return xp.where(here, local, 0), here


# y = w[ids]


def embedding(ids, w, vocabulary, comm, sequence_parallel=False):
    """Look up ids in a table that is cut over the ranks.

    ids (..., s) integers in 0..vocabulary-1, the same on every rank    w (V_r, h)
    ->  y (..., s, h), the same on every rank, saved    one all-reduce of y
        sequence-parallel: y (..., s_r, h), saved       one reduce-scatter
    Raises ValueError for an id out of range (host arrays only), before anything is sent.
    """
    array_namespace(ids, w)
    check_indices(ids, vocabulary, "ids")
    check_share(w.shape[0], vocabulary, comm.size)
    local, here = _local(ids, w.shape[0], comm)
    y, saved = single.embedding(local, w)
    y = y * here[..., None].astype(y.dtype)
    y = sequence.scatter_sum(y, comm) if sequence_parallel else tensor.summed(y, comm)
    return y, (saved, here, comm, sequence_parallel)


def embedding_backward(dy, saved):
    """dw, the only gradient there is.  dy as y was  ->  dw (V_r, h)    sequence-parallel: one all-gather of dy"""
    saved, here, comm, sequence_parallel = saved
    dy = sequence.gather(dy, comm) if sequence_parallel else dy
    return single.embedding_backward(dy * here[..., None].astype(dy.dtype), saved)


# logits_r = x w_r^T


def unembedding(x, w, comm, sequence_parallel=False):
    """A score for each id that the rank has, the padding's too: x @ w.T.

    x (..., s, h), the same on every rank    w (V_r, h)    ->  logits (..., s, V_r), saved
    Sends nothing; sequence-parallel: x is (..., s_r, h), and gathered.
    """
    logits, _ = single.unembedding(sequence.gather(x, comm) if sequence_parallel else x, w)
    return logits, (x, w, comm, sequence_parallel)


def unembedding_backward_input(dy, saved):
    """dy (..., s, V_r)  ->  dx as x was, pending    one all-reduce of dx

    Sequence-parallel, as in sequence.column_parallel: one reduce-scatter of dx, and x is gathered again.
    """
    x, w, comm, sequence_parallel = saved
    x = sequence.gather(x, comm) if sequence_parallel else x
    dx, pending = single.unembedding_backward_input(dy, (x, w))
    return (sequence.scatter_sum(dx, comm) if sequence_parallel else tensor.summed(dx, comm)), pending


def unembedding_backward_weight(pending):
    """->  dw (V_r, h)    sends nothing"""
    return single.unembedding_backward_weight(pending)


# Softmax cross-entropy


def cross_entropy(logits, targets, vocabulary, comm, ignore_index=IGNORED, smoothing=0.0):
    """Summed cross-entropy of a softmax whose classes are cut over the ranks, and the number of positions in the sum.

    logits (..., V_r)    targets (...) integers in 0..vocabulary-1, or ignore_index, the same on every rank
    ->  total (), count (), the same on every rank, saved: the rank's own p        see model/loss.py
    Two all-reduces, of one number a position and of two (with smoothing three), in float32 or wider.
    Raises ValueError for what does not fit, before anything is sent.
    """
    xp = array_namespace(logits, targets)
    targets, counted = checked_targets(logits, targets, vocabulary, ignore_index, smoothing)
    check_share(logits.shape[-1], vocabulary, comm.size)
    places, here = _local(targets, logits.shape[-1], comm)
    real = _real(logits.shape[-1], vocabulary, comm, logits)
    z = xp.where(real, wide(logits), -xp.inf)
    z -= all_reduce(z.max(axis=-1), comm, op="max", algorithm="ring")[..., None]
    p = xp.exp(z)
    sums = [p.sum(axis=-1), xp.where(here, xp.take_along_axis(z, places[..., None], -1)[..., 0], 0)]
    if smoothing:
        sums.append(xp.where(real, z, 0).sum(axis=-1))
    total, target, *every = all_reduce(xp.stack(sums), comm, algorithm="ring")
    p /= total[..., None]
    losses = xp.log(total) - (1 - smoothing) * target
    if smoothing:
        losses -= smoothing / vocabulary * every[0]
    saved = p, places, here, counted, real, vocabulary, smoothing, logits.dtype
    return xp.where(counted, losses, 0).sum(), counted.sum(), saved


def cross_entropy_backward(dtotal, saved):
    """dlogits = dtotal (p - (1 - eps) onehot - eps/V), 0 where the position is ignored and for padding ids.

    dtotal a number or ()    ->  dlogits (..., V_r)    sends nothing
    """
    p, places, here, counted, real, vocabulary, smoothing, dtype = saved
    xp = array_namespace(p)
    onehot = here[..., None] & (places[..., None] == xp.arange(p.shape[-1]))
    dz = p - onehot
    if smoothing:
        dz += smoothing * (onehot.astype(p.dtype) - real.astype(p.dtype) / vocabulary)
    dz *= dtotal
    return narrow(xp.where(counted[..., None], dz, 0), dtype)


def checked_targets(like, targets, vocabulary, ignore_index=IGNORED, smoothing=0.0):
    """targets as int64, 0 where they do not count, and where they do: two arrays. ValueError for what does not fit.

    like (..., anything)    targets (...)
    """
    xp = array_namespace(targets)
    check(like, targets, smoothing)
    targets = targets.astype(xp.int64)
    counted = targets != ignore_index
    targets = xp.where(counted, targets, 0)
    check_indices(targets, vocabulary, "targets")
    return targets, counted


def check_share(each, vocabulary, size):
    """ValueError if `each` ids on every rank are too few for the vocabulary: a table that was cut for more ranks."""
    if each * size < vocabulary:
        raise ValueError(f"{each} ids on each of {size} ranks do not make {vocabulary}; expected "
                         f"{padded(vocabulary, size) // size} or more on each: shard_table(w, rank, size)")


def _real(each, vocabulary, comm, like):
    """Which of the rank's ids are no padding: bool (V_r,)"""
    return comm.rank * each + array_namespace(like).arange(each) < vocabulary
