"""Exercises 43 and 44: what a step sends, and what interleaving buys and costs, counted. See catalogue.py."""

from refimpl.course.exercises.exercise import Exercise

STEPS = [
    Exercise(
        43, "zero_bytes", "count the bytes of a step", "04", difficulty=2, minutes=20, kind="count",
        hints=(
            "What does a ring's reduce-scatter of psi elements over N ranks send from one rank? An all-gather? An "
            "all-reduce?",
            "A lap is psi (N-1)/N elements; an all-reduce is two. Gradients travel 2, 1, k, k laps; parameters 0, 1, "
            "1, 2k. Each lap in its own dtype.",
            "lap = psi * (ranks - 1) // ranks; return lap * ((2, 1, k, k)[stage] * gradient + (0, 1, 1, 2 * k)[stage] "
            "* parameter)",
        ),
        advice={
            "laps": "Read the table in the file again, line by line: how many laps for gradients, how many for "
                    "parameters?",
            "wrong dtype": "Gradients travel in their own dtype, parameters in theirs.",
            "limit of many ranks": "One part in N stays where it is in each lap: (N-1)/N.",
            "over all ranks": "What one rank sends is asked for.",
            "elements": "Bytes are asked for: each element has some.",
        }),
    Exercise(
        44, "schedule_price", "count what interleaving buys and costs", "08", difficulty=2, minutes=20, kind="count",
        hints=(
            "Count for v = 1 first: how long is a rank idle, how many boundaries are between ranks, how far is rank 0 "
            "ahead of the first backward?",
            "With v chunks: the bubble is v times shorter; there are pv - 1 boundaries between stages; rank 0 keeps "
            "1 + (p-1)/(pv) times the p of plain 1F1B.",
            "return 3 * m + 3 * (p - 1) / v, m * (p * v - 1), p if v == 1 else p + (p - 1) / v",
        ),
        advice={
            "bubble": "A rank is idle for (p-1) (F+B) / v, beside m (F+B) of work.",
            "messages": "There are pv stages in a line, and each micro-batch crosses each boundary once.",
            "kept": "Interleaving has to run further ahead: rank 0 keeps p + (p-1)/v, plain 1F1B keeps p.",
        }),
]
