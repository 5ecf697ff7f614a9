"""Who has which positions of a sequence: contiguous, striped or zigzag, and what goes with a position goes along.

    8 positions on 4 ranks, and how many keys (of itself and before) the queries of each see: the work of causality

                   rank 0        rank 1        rank 2        rank 3
    contiguous     0 1      3    2 3      7    4 5     11    6 7     15     the last one has most to do
    striped        0 4      6    1 5      8    2 6     10    3 7     12     (Brandon et al. 2023) nearly even
    zigzag         0 7      9    1 6      9    2 5      9    3 4      9     chunks r and 2P-1-r of 2P: even

Zigzag is how Llama 3 cuts sequences (Grattafiori et al. 2024, section 3.3.2), and ring-flash-attention's name for it.
Everything that is per position is cut alike: tokens, targets, loss masks, learned positions, rotary angles, dropout.
Targets are the *next* tokens, and the next position may be another rank's: shift first (`next_tokens`), then cut.

    mine = positions(length, rank, size, "zigzag")        what a `Place` of model/block.py wants to know
    x_r = shard(x, everybody, rank)                       everybody = all_positions(length, size, "zigzag")
    x = unshard([x_0, x_1, ...], everybody)               x (b, s, ...): the sequence is axis 1

`everybody` lists every rank's positions, ascending in each; they need be no whole sequence, and no layout of the above.
Nothing here is sent.
"""

import difflib
from bisect import bisect_left

from refimpl.arrays import array_namespace, integers
from refimpl.model.loss import IGNORED

LAYOUTS = ("contiguous", "striped", "zigzag")


def positions(length, rank, size, layout="zigzag"):
    """The positions, ascending, that `rank` of `size` has of a sequence of so many: a range, or a list.

    ValueError for a length that the layout cannot cut into equal parts, naming what works.
    """
    check_length(length, size, layout)
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} is not one of {size} ranks; expected 0..{size - 1}")
    if layout == "striped":
        return range(rank, length, size)
    if layout == "contiguous":
        return range(length // size * rank, length // size * (rank + 1))
    chunk = length // (2 * size)
    return [p for k in (rank, 2 * size - 1 - rank) for p in range(chunk * k, chunk * (k + 1))]


def all_positions(length, size, layout="zigzag"):
    """The positions of every rank, in a list."""
    return [positions(length, rank, size, layout) for rank in range(size)]


def check_layout(layout):
    """ValueError unless it is one of LAYOUTS; names the nearest."""
    if layout not in LAYOUTS:
        nearest = difflib.get_close_matches(str(layout), LAYOUTS, n=1, cutoff=0.0)[0]
        raise ValueError(f"layout={layout!r}: expected one of {', '.join(LAYOUTS)}; nearest {nearest!r}")


def check_length(length, size, layout="zigzag"):
    """ValueError unless `length` positions can be cut for `size` ranks; names the nearest lengths that can."""
    check_layout(layout)
    for name, value, least in (("sequence", length, 0), ("cp", size, 1)):
        if value < least:
            raise ValueError(f"{name}={value}: expected {least} or more; nearest {least}")
    parts = size * (2 if layout == "zigzag" else 1)
    if length % parts:
        below, above = length // parts * parts, -(-length // parts) * parts
        why = f"2 cp = {parts}, as a zigzag layout needs" if layout == "zigzag" else f"cp={parts}"
        raise ValueError(f"sequence={length} is not divisible by {why}; "
                         f"pad it to {above}{f', or cut it to {below}' if below else ''}")


def shard(x, everybody, rank):
    """What belongs to the rank's positions: x (b, s, ...), all positions, ascending  ->  (b, s_r, ...), a copy"""
    array_namespace(x)
    _check(x.shape[1], sum(map(len, everybody)), "x")
    return x[:, _rows(everybody, rank, x)].copy()


def unshard(shards, everybody):
    """Everything, positions ascending: shard's inverse. shards: every rank's (b, s_r, ...)  ->  (b, s, ...)"""
    xp, b = array_namespace(*shards), shards[0].shape[0]
    x = xp.empty((b, sum(map(len, everybody)), *shards[0].shape[2:]), shards[0].dtype)
    for rank, mine in enumerate(shards):
        _check(mine.shape[1], len(everybody[rank]), f"the shard of rank {rank}")
        if (mine.shape[0], *mine.shape[2:]) != (b, *x.shape[2:]):
            raise ValueError(f"the shard of rank {rank} has shape {mine.shape}, that of rank 0 {shards[0].shape}; "
                             "expected all axes but 1 to be the same")
        x[:, _rows(everybody, rank, x)] = mine
    return x


def together(everybody):
    """All positions of these ranks, ascending: a list."""
    return sorted(p for mine in everybody for p in mine)


def next_tokens(tokens, mask=None, ignore_index=IGNORED):
    """What should come after each token, for the loss: shifted before it is cut.

    tokens (b, s) integers    mask (b, s) bool: which tokens are to be predicted, all if None
    ->     targets (b, s) int64, ignore_index at the last position and where the next token is masked
    """
    xp = array_namespace(tokens, mask)
    if tokens.ndim != 2 or mask is not None and mask.shape != tokens.shape:
        raise ValueError(f"tokens {tokens.shape}{'' if mask is None else f' with a mask {mask.shape}'}: expected (b, s)"
                         f"{'' if mask is None else ', both of them'}")
    targets = xp.full(tokens.shape, ignore_index, xp.int64)
    targets[:, :-1] = tokens[:, 1:]
    if mask is not None:
        targets[:, :-1] = xp.where(mask[:, 1:], targets[:, :-1], ignore_index)
    return targets


def _rows(everybody, rank, like):
    """Where the rank's positions lie among all of them: a slice where they are neighbours, else an integer array."""
    everything = together(everybody)
    rows = [bisect_left(everything, p) for p in everybody[rank]]
    if not rows:
        return slice(0, 0)
    if rows[-1] - rows[0] == len(rows) - 1:                    # ascending and all different: none is left out
        return slice(rows[0], rows[-1] + 1)
    return integers(rows, like)


def _check(found, expected, name):
    if found != expected:
        raise ValueError(f"{name} has {found} positions along axis 1; expected {expected}, those of its ranks")
