"""The exercises of lesson 09: who has room, who sends what, and whose gradient counts how often. See catalogue.py."""

from refimpl.course.exercises.exercise import Exercise

EXPERTS = [
    Exercise(
        21, "expert_capacity", "who has room", "09", difficulty=2, minutes=20,
        hints=(
            "First the room: how many choices are there in all, and how many of them would each expert have if all had "
            "the same? Then keep, for each expert, how many it has taken.",
            "room = k s / experts times the factor, rounded up; then at least `least`, and at last no more than s. Go "
            "through tokens, and through the choices of each; a choice stays if its expert has taken fewer than room.",
            "room = min(max(math.ceil(k * s / experts * factor), least), s); taken = np.zeros(experts, int); for t, "
            "for j: e = choice[t, j]; kept[t, j] = taken[e] < room; taken[e] += kept[t, j].",
        ),
        advice={
            "k forgotten": "The mean load is k * s / experts.",
            "rounded down": "math.ceil, not int.",
            "above the sequence": "min(..., s), after everything else.",
            "no capacity": "Keep a count for each expert, and compare it with the room.",
            "wrong order": "The outer loop is over tokens, the inner one over their choices.",
        }),
    Exercise(
        22, "dispatch_counts", "how many rows will come", "09", difficulty=2, minutes=15,
        hints=(
            "How often did this rank's tokens choose each of all the experts? Which of these counts does rank r need?",
            "Count with np.bincount over the flattened choices, minlength=experts. Part r is counts[b[r]:b[r + 1]]. "
            "What an all_to_all brings is a list: one array from each rank.",
            "counts = np.bincount(choice.reshape(-1), minlength=experts); return np.stack(all_to_all([counts[b[r]:"
            "b[r + 1]] for r in range(comm.size)], comm))",
        ),
        advice={
            "not exchanged": "What you have counted is what you send. all_to_all(parts, comm) brings what you get.",
            "wrong traffic": "Send rank r the counts of its own experts: counts[b[r]:b[r + 1]], and no tokens.",
            "choices missing": "All k choices of all tokens count, each as often as it was made.",
        }),
    Exercise(
        23, "moe_combine", "put together what the experts made", "09", difficulty=2, minutes=20,
        hints=(
            "Choice number c belongs to token c // k. Which weight belongs to row i?",
            "Make room for every choice, (T k, h), filled with 0. Row i goes to place order[i]. Then sum over k.",
            "outputs = np.zeros((T * k, h)); outputs[order] = rows; return (weights[..., None] * outputs.reshape(T, k, "
            "-1)).sum(axis=1)",
        ),
        advice={
            "not put back": "outputs[order] = rows undoes the sorting.",
            "rows lost": "Give every choice a place of its own first, and add up then; or use np.add.at.",
        }),
    Exercise(
        24, "expert_gradient", "find the bug", "09", difficulty=3, minutes=20, kind="find the bug",
        hints=(
            "Two ranks, one token each, both for the same expert. Write down the mean loss and the expert's gradient, "
            "then what the code returns.",
            "A rank's gradient of `shared` is of its own tokens, so a mean over ranks is the mean over all tokens. "
            "The gradient of an expert has all ranks' tokens in it already, each divided by its rank's own count.",
            "Divide dy by the count of the tokens of all ranks, all_reduce(np.array([float(len(x))]), comm), and only "
            "add after that, for both gradients. To divide dw by comm.size works as long as all counts are alike.",
        ),
        advice={
            "off by a factor": "By what is each token's dy divided in the end? It should be the number of all tokens.",
            "mean of means": "Divide by the number of all tokens instead, once, before anything is summed.",
            "missing all-reduce": "All ranks' tokens have used `shared`.",
        }),
]
