"""Exercises 37 to 42, each a bug that was in real code: a wrong operator to read, to understand and to mend."""

from refimpl.course.exercises.exercise import Exercise

BUGS = [
    Exercise(
        37, "tied_table", "find the bug in a tied table", "10", difficulty=3, minutes=25, kind="find the bug",
        hints=(
            "Follow one element of the table, on two replicas. On which replica is it finished on stage 0, and on "
            "which on stage 1? The table does not begin at the same place.",
            "After the reduce-scatter a replica has the mean of its shard only; the rest of its buffer is its own "
            "gradient still. So what is added over the stages afterwards is a mean on one side, and no mean on the "
            "other.",
            "First the stages: buffer[table] = all_reduce(buffer[table], stages), whole tables, replica by replica. "
            "Then return reduce_scatter(buffer, replicas) / D.",
        ),
        advice={
            "wrong addends": "Sum the table over the stages while every rank still has all of its own gradient of it.",
            "everything added": "Over the stages add buffer[start:start + size]: the rest is of other parameters.",
            "missing all-reduce": "Two sums are needed: over replicas for everything, over stages for the table.",
            "off by a factor": "The mean is over replicas only: D of them, whichever stage they are on.",
            "wrong traffic": "The table over stages, and a reduce-scatter over replicas: no more has to travel.",
        }),
    Exercise(
        38, "token_mean", "find the bug in a mean", "02", difficulty=2, minutes=15, kind="find the bug",
        hints=(
            "Take the two ranks of the picture. What does each rank's mean say, and how much should it weigh?",
            "A mean is a sum by a count, and both have to be of everything. Which two numbers does a rank have to tell "
            "the others?",
            "total, tokens = all_reduce(np.array([(losses * counts).sum(), counts.sum()]), comm); the loss is total / "
            "tokens, and dlosses is counts / tokens.",
        ),
        advice={
            "mean of means": "Sum losses and tokens over everything first, and divide once.",
            "wrong traffic": "A sum and a number of tokens from each rank are all that has to travel.",
            "padding counted": "counts says where there is a token: divide by their number.",
            "missing all-reduce": "The other ranks have tokens, too: sum both numbers over the ranks.",
            "wrong gradient": "Each token weighs as much as any other: 1 over the number of all tokens of all ranks.",
            "off by a factor": "Each token weighs 1 over the number of all tokens of all ranks; padding weighs "
                               "nothing.",
            "not a number": "A micro-batch may be all padding, a rank may have none: do not divide by their own "
                            "counts.",
        }),
    Exercise(
        39, "gate_up_shard", "find the bug in a fused matrix", "05", difficulty=2, minutes=15, kind="find the bug",
        hints=(
            "Write down the columns g0 .. g3, u0 .. u3 of the picture. Which of them does rank 0 get here?",
            "The product in the middle is of gate i and up i: both must be on the same rank, with row i of D.",
            "Split fused into its two halves first, and cut each of them: gate, up = (cut(half, 1, comm.rank, "
            "comm.size) for half in np.split(fused, 2, axis=1)).",
        ),
        advice={
            "wrong cut": "Gates and ups are two matrices in one: cut each of them.",
            "wrong order": "Gates come first in the fused matrix, then ups.",
            "off by a factor": "The last line adds up what ranks have: give each rank its own part only.",
            "wrong traffic": "Each rank works on its own part; one all-reduce adds them up.",
            "missing all-reduce": "The last line was right: each rank's rows of D give one addend.",
        }),
    Exercise(
        40, "overflow_step", "find the bug in a skipped step", "04", difficulty=2, minutes=15, kind="find the bug",
        hints=(
            "What does each of the two ranks of the picture decide, and from what?",
            "The scale, and whether a step is taken, belong to the model, not to a shard. One yes or no has to be "
            "told.",
            "here = not np.isfinite(gradient).all(); overflow = all_reduce(np.float64(here), comm) > 0",
        ),
        advice={
            "decided alone": "One rank's overflow is everybody's: ask all ranks, and decide the same.",
            "not skipped": "A step is taken by all elements or by none.",
            "not a number": "A gradient that is not finite must not reach a parameter.",
            "deadlock": "Every rank has to take part, also one whose shard is finite, or empty.",
            "wrong traffic": "A yes or no from each rank is all that has to travel: one element.",
            "off by a factor": "Divide the gradient by the scale; halve the scale after a skipped step, and only then.",
        }),
    Exercise(
        41, "accumulated_mean", "find the bug in an accumulation", "08", difficulty=1, minutes=10, kind="find the bug",
        hints=(
            "Follow total by hand through two rounds of two micro-batches with gradient 1.",
            "What the first round has brought is divided at its end, and once more at the end of the second.",
            "Add up everything first. Divide once, in the end, by the number of all micro-batches.",
        ),
        advice={
            "scaled again": "Divide once, in the end.",
            "mean of means": "Divide by the number of all micro-batches; rounds may have different numbers.",
            "off by a factor": "Each gradient counts once, with 1 over the number of all micro-batches.",
            "never divided": "The mean is wanted: divide by the number of all micro-batches.",
            "wrong denominator": "The denominator is the number of all micro-batches, once.",
        }),
    Exercise(
        42, "column_backward", "find the bug in a backward", "05", difficulty=2, minutes=10, kind="find the bug",
        hints=(
            "Which of the three results must be the same on every rank? Is it, if the ranks have other columns of w?",
            "x feeds all columns of y, so its gradient is a sum over all columns. A rank has some of them.",
            "dx = all_reduce(dy @ w.T, comm). dw needs x, which is whole, and the rank's own dy: nothing is missing "
            "there.",
        ),
        advice={
            "wrong gradient": "Ask of each gradient: a sum over what, and does this rank have all of it?",
            "off by a factor": "What a rank has is an addend; their sum is wanted, not their mean.",
            "wrong traffic": "One of the three results has to be summed, and only that one.",
        }),
]
