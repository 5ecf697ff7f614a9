"""The exercises of lessons 02 and 04: what replicas share. See catalogue.py."""

from refimpl.course.exercises.exercise import Exercise

REPLICAS = [
    Exercise(
        12, "bucket_plan", "which gradients travel together", "02", difficulty=1, minutes=15,
        hints=(
            "Which gradient is finished first, that of the first parameter or that of the last one? Begin there, and "
            "keep the bucket that you are filling and how full it is.",
            "Go through the sizes in reverse. If there is no bucket yet, or the gradient does not fit into the last "
            "one any more, begin a new one; then put it in.",
            "buckets, filled = [], 0; for name, size in reversed(sizes.items()): if not buckets or filled + size > "
            "cap: buckets.append([]) and filled = 0; then buckets[-1].append(name) and filled += size.",
        ),
        advice={
            "wrong order": "Backward finishes the last parameter first: reversed(sizes.items()).",
            "over the cap": "Ask whether a gradient still fits before you put it in, not after.",
            "too many buckets": "A gradient goes into the last bucket as long as it fits: each bucket pays latencies.",
            "gradients missing": "Look at the end of your loop: is the last bucket in the list, too?",
        }),
    Exercise(
        13, "zero_1_step", "a step of ZeRO-1", "04", difficulty=2, minutes=20,
        hints=(
            "Which numbers does Adam need to update one parameter? Which of them does this rank not have, and which "
            "collective brings them here and no others?",
            "Reduce-scatter the gradients: then the rank has the sum for its own shard. Update its own shard of the "
            "parameter, with its m and v. All-gather what is new. Work on copies.",
            "mine = parameter[b[r]:b[r + 1]].copy(); m, v = m.copy(), v.copy(); update(mine, reduce_scatter(gradient, "
            "comm), Moments(m, v), step, ADAM); return all_gather(mine, comm), m, v",
        ),
        advice={
            "missing all-reduce": "Each rank's gradient is of its own sequences: sum them, with reduce_scatter.",
            "missing all-gather": "The other shards have changed, too, on the other ranks: all_gather(mine, comm).",
            "wrong traffic": "Reduce-scatter the gradient, all-gather the parameter: together an all-reduce's worth.",
            "off by a factor": "The sum is what Adam wants here, not the mean.",
            "input changed": "update works in place: give it copies.",
            "wrong shape": "parameter is whole again in the end; m and v stay shards.",
        }),
    Exercise(
        14, "unit_partition", "a unit, cut with padding", "04", difficulty=2, minutes=20,
        hints=(
            "How long is the unit with its padding, and so each shard? Write the picture in the file again for 13 "
            "elements on 8 ranks.",
            "Rank r has elements shard r to shard (r + 1) of the flat unit. A parameter that lies from begin to begin "
            "+ n has in there what is in both intervals; subtract begin to count in the parameter.",
            "shard = -(-size // alignment) * alignment // ranks; for each parameter start = max(shard * r - begin, 0), "
            "stop = min(shard * (r + 1) - begin, n), and it is a piece if start < stop; then begin += n.",
        ),
        advice={
            "padding": "Round the unit's length up to a multiple of alignment, once, and cut that into equal shards.",
            "elements missing": "A shard may begin and end in the middle of a parameter, and one parameter may span "
                                "several shards.",
            "held twice": "Where a piece ends on one rank, the next one begins on the next rank.",
            "wrong values": "start and stop count in the parameter, not in the unit.",
        }),
    Exercise(
        15, "zero_3_order", "when ZeRO-3 gathers and frees", "04", difficulty=3, minutes=25,
        hints=(
            "Write down the uses in their order first: forward 0, forward 1, ..., backward 1, backward 0. What has to "
            "be there at each of them, and what is needed next?",
            "For each use: gather its unit if it is not here, gather the unit of the next use if it is not here, "
            "compute, reduce after a backward, free the unit unless the next use is of the same one.",
            "uses = [...]; here = set(); for k: for _, wanted in uses[k:k + 2]: if wanted not in here: gather it; then "
            "the use itself; 'reduce u' after a backward; if the next use is not of u: free it.",
        ),
        advice={
            "used before gathered": "A unit is needed whole in forward, and again in backward.",
            "not prefetched": "Start to gather the next unit before you compute with this one.",
            "too much kept": "Free a unit as soon as it has been used: the next but one must not be here yet.",
            "never freed": "In the end a rank holds its shards and nothing else.",
            "wrong traffic": "Each gather sends (N-1)/N of the unit: twice is enough, once for each use.",
            "not reduced": "The gradient of each unit is summed once, after its backward.",
            "wrong order": "Forward goes from the first unit to the last, backward from the last to the first.",
        }),
    Exercise(
        16, "clip_norm", "clip by the norm of all gradients", "04", difficulty=2, minutes=15,
        hints=(
            "Take the picture in the file: what has each rank, and which of it may count on one rank only?",
            "Squares of shards add up over the ranks, by an all-reduce of one number. Squares of what every rank has "
            "are added once, after it. Then the root.",
            "norm = np.sqrt(all_reduce((sharded**2).sum(), comm) + (replicated**2).sum()); multiply both by most / "
            "norm if norm > most, else by 1.",
        ),
        advice={
            "missing all-reduce": "Sum the squares of the shards over the ranks, before the root.",
            "wrong addends": "Add squares, not norms: those of shards over the ranks, those of replicas once.",
            "off by a factor": "The factor is most / norm, and never above 1.",
            "not a number": "All gradients may be 0: do not divide by a norm that is not above most.",
            "wrong traffic": "The sum of squares is one number: send that, not the gradients.",
        }),
]
