"""The exercises of lessons 06, 10 and 12: sequence parallelism, the mesh, checkpoints. See catalogue.py."""

from refimpl.course.exercises.exercise import Exercise

COMPOSING = [
    Exercise(
        31, "rank_to_coordinates", "from a rank to its coordinates", "10", difficulty=1, minutes=10,
        hints=(
            "How do you get the last digit of a decimal number, and what is left of it then? Here each digit has a "
            "base of its own.",
            "Go through order.split('-') from the front: the place along an axis is what is left modulo its size, and "
            "then what is left is divided by that size.",
            "place = {}; for axis in order.split('-'): place[axis] = rank % sizes[axis]; rank //= sizes[axis]. Return "
            "place.",
        ),
        advice={
            "wrong order": "The axis that `order` names first changes fastest: begin with it.",
            "order ignored": "The order is an argument: nothing says that tp comes first.",
            "not divided": "After a digit is read, divide by its base: the next one is in what is left.",
            "out of range": "A place along an axis is below its size: take what is left modulo that.",
        }),
    Exercise(
        32, "axis_groups", "the groups of an axis", "10", difficulty=2, minutes=15,
        hints=(
            "How far apart, in ranks, are two neighbours along tp? And along the axis that the order names second?",
            "The stride of an axis is the product of the sizes of all that are named before it. A group is start, "
            "start "
            "+ stride, start + 2 stride, and so on; a start is a rank whose place along the axis is 0.",
            "starts = [rank for rank in range(world) if rank // stride % sizes[axis] == 0]; return [[start + k * "
            "stride "
            "for k in range(sizes[axis])] for start in starts]",
        ),
        advice={
            "not a partition": "Begin one group at each rank whose place along the axis is 0.",
            "other axes differ": "Neighbours along an axis are its stride apart, the product of the faster sizes.",
            "order ignored": "Find the stride in the order that is given, not in a fixed one.",
            "wrong order": "Ranks by their place along the axis, groups by their first rank: both go upwards.",
            "transposed": "These are the ranks that agree along the axis; wanted are those that differ in nothing "
                          "else.",
        }),
    Exercise(
        33, "crossing_axes", "which axes leave a node", "10", difficulty=2, minutes=15,
        hints=(
            "You can list an axis's groups. When does a group leave a node?",
            "Rank r is on node r // node_size. It is enough to compare the first and the last rank of a group, but all "
            "groups have to be looked at.",
            "For each axis with its stride and starts: any(start // node_size != (start + (size - 1) * stride) // "
            "node_size for start in starts).",
        ),
        advice={
            "only the first group": "The first group may fit where a later one does not: with nodes of 8, [6, 7, "
                                    "8] of 3.",
            "only sizes": "How many ranks a group has says little: how far apart they are is what counts.",
            "only the slowest": "It is not one axis that leaves a node: look at the groups of each.",
            "one rank": "A group of one rank sends nothing, wherever it is.",
            "order ignored": "The order decides how far apart the ranks of a group are.",
        }),
    Exercise(
        34, "reshard", "a checkpoint for another number of ranks", "12", difficulty=2, minutes=25,
        hints=(
            "Put the whole array together first, and forget who wrote what. How do you find out whether something is "
            "missing?",
            "Make an empty array of `size` elements and a boolean one of the same length. Each file writes its "
            "piece to "
            "its place and marks it as there. Cut what is whole with `bounds`.",
            "whole[start:start + len(piece)] = piece; there[start:start + len(piece)] = True. If not there.all(): "
            "raise "
            "ValueError. Then [whole[b[r]:b[r + 1]].copy() for r in range(ranks)], b = bounds(size, ranks).",
        ),
        advice={
            "wrong order": "Files come as they come: `start` says where a piece belongs.",
            "held twice": "Put a piece where it belongs instead of joining all that there are: some are there twice.",
            "added up": "Pieces that are there twice are replicas: write them, do not add them.",
            "hole not noticed": "Mark what you have written, and raise a ValueError unless all of it is marked.",
            "refused": "All elements are there: overlapping pieces, and empty ones, are no fault.",
            "wrong cut": "Cut where bounds(size, ranks) says: shards differ by one element at most, and may be empty.",
            "wrong shape": "Return one array for each new rank, in a list.",
            "input changed": "Pieces may be replicas of each other in memory, too: do not write into them.",
        }),
    Exercise(
        35, "finish_gradients", "which gradients are addends", "06", difficulty=2, minutes=15,
        hints=(
            "Ask of each gradient: which positions is it a sum over, the rank's own or all of them? And is it of the "
            "whole parameter, or of the rank's part?",
            "Outside the two blocks a rank sees its own positions only, and its gradients are addends. Inside, x and "
            "dy have been gathered, and are whole. Which two of the four belong outside?",
            "return all_reduce(norm, comm), all_reduce(positions, comm), row_bias, column_weight",
        ),
        advice={
            "missing all-reduce": "A norm and the learned positions have seen the rank's own positions only: sum them.",
            "off by a factor": "Addends are summed, not averaged. And a sum of what is whole already counts it t "
                               "times.",
            "wrong addends": "Each rank's column_weight is of other columns: they do not add up.",
            "wrong traffic": "Two of the four gradients have to travel, once around each.",
        }),
    Exercise(
        36, "layer_elements", "count what a layer sends", "06", difficulty=2, minutes=15, kind="count",
        hints=(
            "Write down the collectives in their order, forward and backward, for one block. A layer has two blocks.",
            "With n = b s h, an all-reduce sends 2 n (t-1)/t, an all-gather or a reduce-scatter n (t-1)/t. Forward "
            "of a "
            "block with sequence parallelism: one all-gather, one reduce-scatter.",
            "once = b * s * h * (t - 1) // t; forward 4 * once in both cases, backward 4 * once, and 6 * once with "
            "sequence parallelism.",
        ),
        advice={
            "gather forgotten": "The weight gradient needs the block's whole input, of which backward has s/t "
                                "positions.",
            "one block": "A layer has two blocks, and each of them sends.",
            "one lap": "An all-reduce is a reduce-scatter and an all-gather: two laps.",
            "limit of many ranks": "One part in t stays where it is in each lap: (t-1)/t.",
            "bytes": "Elements are asked for; bytes depend on the dtype.",
            "over all ranks": "What one rank sends is asked for, not all together.",
            "sp saves traffic": "Forward sends the same with and without: an all-reduce is these two, one after "
                                "the other.",
        }),
]
