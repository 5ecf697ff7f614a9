"""Data parallelism: every rank has the whole model and some of the sequences; the gradients are added up while backward
still goes on.

    backward     | head | block 2 | block 1 | block 0 | embed |
    buckets             [ 0: head   ][ 1: block 2, 1  ][ 2: block 0, embed ]       as gradients become ready
    all-reduces            |== 0 ==|       |=== 1 ===|           |=== 2 ===|       in the background; only what is left
                                                                                   of the last one takes time

One all-reduce a gradient would pay 2 (P-1) latencies for each; one for all of them could begin only when backward is
done. So they are packed into buckets, in reverse order of use, which is the order in which backward finishes them: best
size and what it hides in cost/overlap.py. Ranks may finish gradients in different orders, but a bucket is started only
after all before it, so that every rank reduces the same ones in the same order; a gradient that a rank has none of
counts as 0. (Li et al. 2020, PyTorch DDP, section 3.2.)

    L = (sum over ranks and micro-batches of the tokens' losses) / (how many tokens count, of all ranks together)

The ranks have different numbers of tokens to learn from, so a mean of their means would be another loss. The count is
known before forward; with 1/count in every dlogits gradients only need to be added, over micro-batches and ranks.

Sent by a rank, n elements: 2 n (P-1)/P a step, however many micro-batches; and two numbers, count and loss.
Letters: P ranks, b sequences, s positions, h hidden, V vocabulary.
"""

from contextlib import contextmanager, nullcontext
from functools import partial

from refimpl.arrays import array_namespace, to_host
from refimpl.collectives import all_reduce, all_reduce_start, bounds
from refimpl.model import transformer
from refimpl.model.config import is_bias, of_block
from refimpl.model.loss import IGNORED, cross_entropy_backward
from refimpl.parallel.reducing import all_reduce_
from refimpl.precision import STORED, add_, narrow, wide

GRADIENTS, COUNTS = "dp gradients", "dp counts"             # the ledger's names for these messages


# Who has what


def share(sequences, rank, size, micro_batches=1):
    """Which of so many sequences `rank` of `size` has, micro-batch by micro-batch: a list of ranges, some maybe empty.

    Rank r has sequences [n r // P, n (r+1) // P), and cuts them for its micro-batches in the same way.
    """
    if sequences < 0:
        raise ValueError(f"sequences={sequences}: expected 0 or more; nearest 0")
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} is not one of {size} ranks; expected 0..{size - 1}")
    if micro_batches < 1:
        raise ValueError(f"micro_batches={micro_batches}: expected 1 or more; nearest 1")
    b = bounds(sequences, size)
    cuts = [b[rank] + k for k in bounds(b[rank + 1] - b[rank], micro_batches)]
    return [range(*ends) for ends in zip(cuts, cuts[1:])]


def valid_tokens(targets, comm, ignore_index=IGNORED):
    """How many tokens count, over all ranks and micro-batches: one all-reduce of one number.

    targets    list of integer arrays, one a micro-batch; none, if the rank has no data        ->  an int
    """
    with comm.phase(COUNTS):
        return int(all_reduce(sum(int(to_host((t != ignore_index).sum())) for t in targets), comm,
                              algorithm="doubling"))


def plan(sizes, cap, first=None):
    """Which gradients travel together: lists of names, in the order in which the buckets are started.

    sizes    dict by name, in the order of use in forward: elements or bytes    cap    most of a bucket, in the same
    first    cap of the first bucket: a small one starts the network early (PyTorch: 1 MiB, then 25 MiB)
    A parameter larger than the cap has a bucket of its own. (PyTorch closes a bucket when it has reached the cap.)
    """
    for name, value in (("cap", cap), ("first", cap if first is None else first)):
        if not value > 0:
            raise ValueError(f"{name}={value}: a bucket holds more than 0; for one gradient in each, take 1")
    buckets, filled = [], 0
    for name, size in reversed(sizes.items()):
        limit = first if first is not None and len(buckets) == 1 else cap
        if not buckets or filled + size > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(name)
        filled += size
    return buckets


# One step's gradients


class GradientBuckets:
    """The gradients of one step on one rank: filled by backward, summed over ranks bucket by bucket.

        step = GradientBuckets(parameters, plan(sizes, cap), comm)
        with step.no_sync():
            backward(..., step.ready)                  # every micro-batch but the last: only added up here
        backward(..., step.ready)                      # the last one: a full bucket is started at once
        sums = step.finish()                           # {name: array}

    parameters    dict of arrays by name: whose gradients they are        buckets    from `plan`, the same on every rank
    dtype         of the gradients, as they are added up and sent; each parameter's own unless given. Those of 2 bytes
                  travel as they are, are added in float32 and rounded once (reducing.py)
    average       divide by the number of ranks: for losses that each rank has divided by its own count
    """

    def __init__(self, parameters, buckets, comm, dtype=None, average=False):
        self.comm, self.average = comm, average
        self.bucket_of = {name: k for k, names in enumerate(buckets) for name in names}
        if sorted(name for names in buckets for name in names) != sorted(parameters) or not all(buckets):
            raise ValueError(f"buckets={buckets}: expected each of {', '.join(parameters)} once, and no empty bucket")
        self.rooms, self.gradients = [], dict.fromkeys(parameters)
        for names in buckets:
            self._make_room(names, parameters, dtype)
        self.missing = [set(names) for names in buckets]     # what a bucket still waits for
        self.started = []                                    # requests, bucket by bucket
        self.accumulating = False

    def _make_room(self, names, parameters, dtype):
        """One flat array for a bucket; its gradients are views of it."""
        xp = array_namespace(*(parameters[name] for name in names))
        dtypes = {parameters[name].dtype for name in names} if dtype is None else {xp.dtype(dtype)}
        if len(dtypes) > 1:
            raise ValueError(f"bucket {names} has gradients of {', '.join(sorted(map(str, dtypes)))}: give one dtype")
        [dtype] = dtypes
        if dtype.name not in STORED.values():
            raise ValueError(f"bucket {names} has gradients of {dtype}; expected one of {', '.join(STORED.values())}")
        room, start = xp.zeros(sum(parameters[name].size for name in names), dtype), 0
        for name in names:
            shape, size = parameters[name].shape, parameters[name].size
            self.gradients[name] = room[start:start + size].reshape(shape)
            start += size
        self.rooms.append(room)

    @contextmanager
    def no_sync(self):
        """Inside, gradients are added up on this rank only: more micro-batches will come."""
        self.accumulating = True
        try:
            yield
        finally:
            self.accumulating = False

    def ready(self, name, gradient):
        """The gradient of this micro-batch is complete. It is added to what there is; the last micro-batch's fills the
        bucket, and a full bucket is started once those before it have been."""
        if name not in self.gradients:
            raise ValueError(f"gradient {name!r}: expected one of {', '.join(self.gradients)}")
        mine, bucket = self.gradients[name], self.bucket_of[name]
        if gradient.shape != mine.shape:
            raise ValueError(f"gradient of {name} has shape {gradient.shape}, its parameter {mine.shape}")
        if name not in self.missing[bucket]:
            raise ValueError(f"gradient of {name} is ready twice in one step, and its sum under way: add up the parts "
                             "of a tied parameter first; put all micro-batches but the last one in no_sync()")
        add_(mine, gradient)
        if not self.accumulating:
            self.missing[bucket].remove(name)
            while len(self.started) < len(self.rooms) and not self.missing[len(self.started)]:
                self._start()

    def _start(self):
        """Start the next bucket."""
        key, comm = len(self.started), self.comm
        room = self.rooms[key]
        if self.average:
            room[...] = narrow(wide(room) / comm.size, room.dtype)        # first, so that float16 sums stay in range
        with comm.phase(GRADIENTS):
            if room.dtype.itemsize > 2:
                request = all_reduce_start(room, comm, algorithm="ring", out=room)
            else:
                request = comm.background(lambda twin: all_reduce_(room, twin, key))
        self.started.append(request)

    def finish(self):
        """Start what is left (what this rank has not used counts as 0) and wait for all: {name: sum over ranks}."""
        while len(self.started) < len(self.rooms):
            self._start()
        for request in self.started:
            request.wait()
        self.missing = [set() for _ in self.rooms]           # the step is over
        return self.gradients


# A transformer's backward in pieces


def backward(dlogits, saved, ready, on_piece=None, model=transformer, scale=None):
    """The backward of a whole model that hands over gradients as soon as they are complete, last layer first.

    dlogits    (b, s, V)        saved       from model.forward
    ready      ready(name, gradient), called once for each parameter: a tied table's after both its parts
    on_piece   on_piece("head" | layer), called when a piece is computed, before its gradients are ready
    model      whose pieces: model.transformer, or parallel.transformer for ranks that are cut by tp, too
    scale      what the total loss is multiplied by; asked for where experts have an auxiliary loss: see model/block.py
    """
    saved_embed, blocks, saved_head = saved

    def done(piece, gradients):
        if on_piece is not None:
            on_piece(piece)
        for name, gradient in reversed(gradients.items()):
            ready(name, gradient)

    dx, pending = model.head_backward_input(dlogits, saved_head)
    gradients = model.head_backward_weight(pending)
    tied = {name: gradients.pop(name) for name in ["embedding.tokens"] if name in gradients}
    done("head", gradients)
    for layer in reversed(range(len(blocks))):
        dx, mine = model.block.backward(dx, blocks[layer], scale)
        done(layer, {f"blocks.{layer}.{name}": gradient for name, gradient in mine.items()})
    done("embed", transformer.added(tied, model.embed_backward(dx, saved_embed)))


def loss_and_gradients(micro_batches, parameters, config, step, scale=1.0):
    """Mean loss of the whole batch, and its gradients, on every rank.

    micro_batches    the rank's own: list of (tokens (b, s), targets (b, s), Place); none, or empty ones, are fine
    step             a new `GradientBuckets`            scale    the loss is multiplied by it before backward
    ->  loss, a float; {name: scale times its gradient}, the same bits on every rank
    """
    comm, total = step.comm, 0.0
    count = max(valid_tokens([targets for _, targets, _ in micro_batches], comm), 1)
    for number, (tokens, targets, place) in enumerate(micro_batches):
        forward, backward_of = flops(parameters, config, *tokens.shape)
        mine, _, (saved, saved_loss) = transformer.loss(tokens, targets, parameters, config, place)
        comm.compute(forward, "forward")
        total += float(to_host(mine))
        dlogits = cross_entropy_backward(scale / count, saved_loss)
        with step.no_sync() if number + 1 < len(micro_batches) else nullcontext():
            backward(dlogits, saved, step.ready, partial(_compute, comm, backward_of), scale=scale / count)
    gradients = step.finish()
    with comm.phase(COUNTS):
        return float(all_reduce(total, comm, algorithm="doubling")) / count, gradients


def _compute(comm, backward_of, piece):
    comm.compute(backward_of.get(piece, 0), "backward")


def flops(parameters, config, b, s):
    """What the matrix products of one micro-batch take: forward, all of it, and {"head": ..., 0: ..., 1: ...} backward.

    Backward has two products for each of forward's, and does again what is recomputed.
    """
    forward, backward_of = 0, {}
    table = 2 * b * s * parameters[transformer.table_name(config)].size
    for piece in ("head", *range(config.layers)):
        block = {} if piece == "head" else of_block(parameters, piece)
        weights = {name: p.size for name, p in block.items() if not (is_bias(name) or "norm" in name)}
        for name in weights.keys() & {"moe.w1", "moe.w2"}:
            weights[name] = weights[name] // config.experts * config.top_k               # a token uses some of them
        products = 2 * b * s * sum(weights.values())
        core = 4 * b * s * s * block["attention.wo"].shape[0] if block else 0
        again = {"none": 0, "selective": core, "full": products + core}[config.recompute]
        once = products + core if block else table
        forward += once
        backward_of[piece] = 2 * once + again
    return forward, backward_of
