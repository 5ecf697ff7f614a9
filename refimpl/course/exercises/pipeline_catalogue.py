"""What is said about the exercises on pipelines, lesson 08: see catalogue.py."""

from refimpl.course.exercises.exercise import Exercise

PIPELINES = [
    Exercise(
        7, "gpipe_order", "the order of GPipe", "08", difficulty=1, minutes=10,
        hints=(
            "Every rank of GPipe does the same: first one thing for all micro-batches, then the other.",
            "Rank r has stage r. Its list is rF0, rF1, ... up to micro-batch m-1, then rB0, rB1, ...",
            'return [f"{rank}F{k}" for k in range(m)] + [f"{rank}B{k}" for k in range(m)]',
        ),
        advice={
            "wrong actions": "Each of the m micro-batches has one F and one B on every rank.",
            "wrong order": "GPipe begins no backward before its last forward.",
            "bubble": "All ranks should take the micro-batches in the same order.",
            "deadlock": "All ranks should take the micro-batches in the same order.",
        }),
    Exercise(
        8, "one_f_one_b", "the warm-up of 1F1B", "08", difficulty=2, minutes=20,
        hints=(
            "Draw p = 3 by hand. The last rank does F0 B0 F1 B1 and so on. How many forwards must rank 1 have done "
            "before B0 can come back to it? And rank 0?",
            "Rank r does p-1-r forwards first, or m if there are not so many. Then one forward and one backward in "
            "turn, and the backwards that are left.",
            "warm_up = min(m, p - 1 - rank); F of 0 to warm_up - 1; then for k in range(m - warm_up): F of "
            "warm_up + k, then B of k; then B of m - warm_up to m - 1.",
        ),
        advice={
            "wrong actions": "Where m is smaller than the warm-up there are only m forwards to do.",
            "too much kept": "After p-1-r forwards comes one more, and then the first backward: p-r are enough.",
            "bubble": "A rank far from the end must be ahead by more forwards: as many as there are ranks behind it.",
            "deadlock": "The first rank warms up longest, the last one not at all.",
        }),
    Exercise(
        9, "interleaved_placement", "which layers an interleaved rank has", "08", difficulty=1, minutes=10,
        hints=(
            "With v chunks on each of p ranks the model is cut into p v stages. Which of them are on rank 0?",
            "Stage s is on rank s mod p: rank r has the stages r, r + p, r + 2p, ... Cut the layers into p v stages "
            "first.",
            "S = p * v; return [list(range(layers * s // S, layers * (s + 1) // S)) for s in range(rank, S, p)]",
        ),
        advice={
            "layers missing": "Stage s of S ends where stage s + 1 begins: layers * (s + 1) // S.",
            "wrong placement": "Stage s is on rank s mod p: after the last rank comes the first one again.",
            "wrong order": "Chunks are in the order in which a micro-batch meets them.",
        }),
    Exercise(
        10, "happens_before", "what comes before what", "08", difficulty=3, minutes=25,
        hints=(
            "Which actions must have ended right before b can start? There is the one before it in its rank's list, "
            "and there are those whose results it needs.",
            "F of stage s needs F of stage s-1. B of stage s needs B of stage s+1, if there is one, and its own F. Go "
            "back from b along all these arrows. If you meet a, the answer is True.",
            "todo, seen = [b], {b}; while todo: take one out; for each action right before it: if it is a, return "
            "True; if it is not in seen, add it to both. At the end return False.",
        ),
        advice={
            "arrow missing": "There are three kinds of arrows: list order, inputs, and gradients.",
            "not transitive": "Follow the arrows on from what you have reached, until there is nothing new.",
            "says too much": "Only what must have ended before b can start, by way of arrows, comes before it.",
            "too slow": "Remember what you have reached, so that you go on from there only once.",
        }),
    Exercise(
        11, "split_backward", "a backward in two halves", "08", difficulty=2, minutes=15,
        hints=(
            "Write the whole backward first: four products. Which of them does the stage before wait for?",
            "da = dy w2^T and dx = da w1^T are urgent. dw1 = x^T da and dw2 = a^T dy can wait; they need da, which "
            "you have already.",
            "da = dy @ w2.T; then def weight_gradients(): return x.T @ da, a.T @ dy; at the end "
            "return da @ w1.T, weight_gradients",
        ),
        advice={
            "not split": "Put the products for dw1 and dw2 into the function that is called later.",
            "work done twice": "Keep da: the weight gradient of the first layer needs it, too.",
            "wrong gradient": "y = a w2 and a = x w1, one layer after the other: dy gives da, and da gives dx.",
        }),
]
