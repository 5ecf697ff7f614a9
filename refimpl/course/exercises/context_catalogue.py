"""The exercises of lesson 07: long sequences, dealt out. See catalogue.py."""

from refimpl.course.exercises.exercise import Exercise

CONTEXT = [
    Exercise(
        17, "merge_softmax", "merge two partial softmaxes", "07", difficulty=2, minutes=20,
        hints=(
            "out1 is a sum of values, each times its exponential, divided by the sum of the exponentials. That sum is "
            "exp(lse1). So what is the undivided sum?",
            "out = (exp(lse1) out1 + exp(lse2) out2) / (exp(lse1) + exp(lse2)), and lse is the log of the divisor. "
            "Divide above and below by exp(the larger lse), so that nothing overflows; and think of -inf.",
            "largest = np.maximum(lse1, lse2); safe = np.where(np.isfinite(largest), largest, 0); w1, w2 = exp(lse1 - "
            "safe), exp(lse2 - safe); total = w1 + w2, but divide by 1 where it is 0; lse = safe + log(total), -inf "
            "there.",
        ),
        advice={
            "overflow": "exp(lse - largest) instead of exp(lse), and add largest again after the log.",
            "not a number": "Where both are -inf subtract 0 instead, and divide by 1 instead of 0.",
            "not weighted": "The weights are exp(lse1) and exp(lse2), divided by their sum.",
            "lse not merged": "lse = largest + log(exp(lse1 - largest) + exp(lse2 - largest)).",
        }),
    Exercise(
        18, "zigzag_owner", "who has which position", "07", difficulty=1, minutes=10,
        hints=(
            "How long is a chunk, and in which one is the position?",
            "Chunk k of 2P is of rank k for k < P, and of rank 2P-1-k else. The rank's first chunk lies before its "
            "second one.",
            "size = length // (2 * ranks); chunk, inside = divmod(position, size); return (chunk, inside) if chunk < "
            "ranks else (2 * ranks - 1 - chunk, size + inside)",
        ),
        advice={
            "contiguous": "Cut into 2P chunks, not P.",
            "not back": "Chunk P is of rank P-1, chunk P+1 of rank P-2, the last one of rank 0.",
            "wrong place": "Positions of the second chunk come after those of the first, and places count from 0.",
        }),
    Exercise(
        19, "causal_block", "which blocks causality leaves", "07", difficulty=2, minutes=15,
        hints=(
            "Which query sees most, and which key is seen by most? Which two numbers decide that nothing is seen?",
            "Nothing is seen if the first key comes after the last query. Everything is seen if the last key does not "
            "come after the first query.",
            'if keys[0] > queries[-1]: "none"; elif keys[-1] <= queries[0]: "all"; else "part".',
        ),
        advice={
            "diagonal lost": "Compare with > and <=: a query sees the key of its own position.",
            "pairs lost": "The last query sees most, the first key is seen by most: compare those two.",
            "mask forgotten": "The first query sees least, the last key is seen by fewest: compare those two.",
            "work wasted": 'If the first key comes after the last query the answer is "none".',
            "mask wasted": 'If the last key does not come after the first query the answer is "all".',
        }),
    Exercise(
        20, "ring_backward", "ring attention, backward", "07", difficulty=3, minutes=30,
        hints=(
            "Which of the three gradients belongs to this rank from the start, which two to the block that is here? "
            "What must happen to those when the block goes on?",
            "dq: add up over the steps. dk, dv: receive what has come with the block, add your part, send that on with "
            "the block. After step P-1 they are one step before home: send them once more.",
            "kv, dkv = np.stack([k, v]), zeros; for step in range(P): dq += ..., dkv += ...; if step < P - 1: kv = "
            "comm.sendrecv(kv, dst=right, src=left); then dkv = comm.sendrecv(dkv, dst=right, src=left), also after "
            "the last step. For P = 1 send nothing.",
        ),
        advice={
            "own block only": "All blocks have to come by: P steps, P-1 of them with a block that has travelled.",
            "not home": "After the last step the gradients have one more step to go, to the right.",
            "not with its block": "Send dk and dv on with the block that they are of, and add to what arrives.",
            "wrong traffic": "Keys and values need not travel after the last step, and queries never.",
            "deadlock": "A send returns only when it is received. comm.sendrecv does both at once.",
        }),
]
