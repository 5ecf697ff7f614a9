"""Ring attention: queries stay, keys and values go round, and each rank merges what it finds in the blocks that pass.

    step     rank 0    rank 1    rank 2    rank 3
    0        kv0       kv1       kv2       kv3       compute with the block at hand (kv of rank r - step);
    1        kv3       kv0       kv1       kv2       meanwhile it goes on to the right, and the next one comes in
    2        kv2       kv3       kv0       kv1
    3        kv1       kv2       kv3       kv0       then out, lse = merge of the P partial softmaxes (blockwise.py)

    backward             the same round again, with dout: dq adds up here, dk and dv of the block go with it, home
    step 0               own block: its dk, dv wait at home
    step 1 .. P-1        dkv of the block = what has come with it + mine; goes on to the right, one step after the block
    in the end           rank r+1's step P-1 sends the last addends home: own dkv += what comes

Sent by a rank, KV = 2 b s/P n d elements, n key-value heads only: forward (P-1) KV; backward (P-1) KV, and (P-1) KV of
gradients in float32 or wider. Beside its own a rank holds two blocks that pass: O(s/P), not O(1). (Liu et al. 2023.)

Time with balanced work, C a step's, T = alpha + KV beta the transfer's: forward (P-1) max(C, T) + C. Without balance
everybody waits for who has most to do: causal and contiguous, that is a whole block in every step but the first. So
deal positions out striped or zigzag: context_layout.py.
Letters: b sequences, s positions of P ranks, n key-value heads, g query heads for each, d features; a subscript r marks
what rank r holds. kv (b, s_r, n, 2, d): each head's key beside its value, one message.
"""

from typing import NamedTuple

from refimpl.arrays import array_namespace
from refimpl.model.attention import NO_DROPOUT, Dropout
from refimpl.model.blockwise import BLOCK, merge
from refimpl.model.blockwise import Saved as BlockSaved
from refimpl.parallel.context_work import attend_block, attend_block_backward, check_block, sees_any
from refimpl.precision import narrow, wide


class Saved(NamedTuple):
    """What backward needs: the rank's own, O(s/P)."""

    q: object                                              # (b, s_r, n, g, d)
    k: object                                              # (b, s_r, n, d)
    v: object                                              # (b, s_r, n, d)
    out: object                                            # (b, s_r, n, g, d)
    lse: object                                            # (b, s_r, n, g)
    comm: object
    everybody: object
    causal: bool
    dropout: Dropout
    block: int


def ring_attention(q, k, v, comm, everybody, causal=True, dropout=NO_DROPOUT, block=BLOCK):
    """Softmax attention over the keys of all ranks.

    q (b, s_r, n, g, d)    k, v (b, s_r, n, d)    ->  out (b, s_r, n, g, d), saved
    everybody    each rank's positions, ascending, from context_layout.all_positions; a query sees keys at its own
                 position and before, or with causal=False all
    dropout      of probabilities, by their global numbers    block: of model/blockwise.py
    Raises ValueError, before anything is sent, for arrays that do not fit each other or the positions.
    """
    check_block(q, k, v, comm, everybody, dropout, block)
    mine, out, lse = everybody[comm.rank], None, None
    with _collective(k, comm, everybody, causal):
        for step, (owner, kv) in enumerate(_passing(pack_kv(k, v), comm, everybody)):
            theirs = everybody[owner]
            if step == 0 or sees_any(mine, theirs, causal):
                part, found = attend_block(q, *unpack_kv(kv), comm, causal, mine, theirs, dropout, block)
                out, lse = (part, found.lse) if step == 0 else merge(out, lse, part, found.lse)
    out = narrow(out, q.dtype)
    return out, Saved(q, k, v, out, lse, comm, everybody, causal, dropout, block)


def ring_attention_backward(dout, saved):
    """dout (b, s_r, n, g, d)  ->  dq (b, s_r, n, g, d), dk, dv (b, s_r, n, d)"""
    q, k, v, out, lse, comm, everybody, causal, dropout, block = saved
    mine, dq, home, addends = everybody[comm.rank], None, None, None
    with _collective(k, comm, everybody, causal):
        for step, (owner, kv) in enumerate(_passing(pack_kv(k, v), comm, everybody)):
            theirs = everybody[owner]
            if step == 0 or sees_any(mine, theirs, causal):
                found = BlockSaved(q, *unpack_kv(kv), out, lse, causal, mine, theirs, dropout, block)
                part, dk, dv = attend_block_backward(dout, found, comm)
                dq, dkv = part if step == 0 else dq + part, pack_kv(dk, dv)
            else:
                dkv = array_namespace(kv).zeros_like(wide(kv))
            if step == 0:
                home = dkv
                continue
            if step > 1:                                   # the ranks that had this block before have added theirs
                dkv += _finish(addends)
            addends = _start(dkv, comm, len(everybody[owner - 1]))
        if comm.size > 1:
            home += _finish(addends)
    dk, dv = unpack_kv(home)
    return narrow(dq, q.dtype), narrow(dk, k.dtype), narrow(dv, v.dtype)


def _collective(k, comm, everybody, causal):
    """All ranks must be at it, with arrays that fit: else CollectiveMismatchError. Messages may go without header."""
    return comm.collective("ring_attention", bare=True, dtype=k.dtype.str, others=(*k.shape[:1], *k.shape[2:]),
                           positions=sum(map(len, everybody)), causal=causal)


def _passing(kv, comm, everybody):
    """The blocks of all ranks, (owner, kv), own one first. While the caller computes with one, the next is coming.

    kv (b, s_r, n, 2, d)    sends P-1 blocks to the right
    """
    for owner in (k % comm.size for k in range(comm.rank, comm.rank - comm.size, -1)):
        last = owner == (comm.rank + 1) % comm.size
        coming = None if last else _start(kv, comm, len(everybody[owner - 1]))
        yield owner, kv
        if not last:
            kv = _finish(coming)


def _start(kv, comm, length):
    """Begin to send a block to the right, and to receive one of so many positions from the left."""
    room = array_namespace(kv).empty((kv.shape[0], length, *kv.shape[2:]), kv.dtype)
    return comm.isend(kv, (comm.rank + 1) % comm.size), comm.irecv((comm.rank - 1) % comm.size, out=room)


def _finish(requests):
    """The block that has come, when the other has gone, too."""
    sending, receiving = requests
    kv = receiving.wait()
    sending.wait()
    return kv


def pack_kv(k, v):
    """k, v (b, s, n, d)  ->  (b, s, n, 2, d), in one piece"""
    return array_namespace(k, v).stack([k, v], 3)


def unpack_kv(kv):
    """k, v (b, s, n, d): views"""
    return kv[..., 0, :], kv[..., 1, :]
