"""Right numbers at the wrong price: what the ranks sent, against what the exercise allows."""

from refimpl.course.exercises.finding import Wrong
from refimpl.world.deadlock import numbered

ITEMSIZE = 8                                          # all exercises are in float64
HEADLINE = "values are right, traffic is not"


def judge_traffic(case, ledger, ranks):
    """What was sent, against what should have been."""
    P, rule = case.size, case.traffic
    elements = [ledger.bytes_sent(rank=rank) / ITEMSIZE for rank in range(P)]
    messages = [ledger.messages(rank=rank) for rank in range(P)]
    called = {message.collective for message in ledger.trace} - {None, "barrier"}
    if rule.ring and called:
        raise Wrong("library used", f"it works, by calling {called.pop()}",
                    "Build it from comm.send, comm.recv and comm.sendrecv: that is what this exercise is about.")
    right = sum(elements) in rule.totals if rule.elements is None else elements == rule.elements
    if not right or rule.messages not in (None, max(messages)) or rule.messages not in (None, min(messages)):
        seems = ["You seem to send the whole array to every rank."] * (rule.ring and whole_to_all(case, elements))
        raise Wrong("wrong traffic", HEADLINE, f"{ranks}{sent(elements, messages)}; {should(rule)}.", *seems)
    if rule.ring and not one_neighbour(ledger, P):
        partners = numbered([dst for dst in range(P) if ledger.messages(rank=0, dst=dst)])
        raise Wrong("wrong traffic", HEADLINE,
                    f"{ranks}rank 0 sent messages to {partners}; in a ring a rank sends to one neighbour only.")


def one_neighbour(ledger, P):
    """Whether all ranks send to the right, or all to the left."""
    return any(all(ledger.messages(rank=rank) == ledger.messages(rank=rank, dst=(rank + turn) % P) for rank in range(P))
               for turn in (1, -1))


def whole_to_all(case, elements):
    """Whether each rank sent P-1 times the whole array."""
    n = max(x.size for x in case.expected.values())
    return n > 0 and case.size > 1 and all(sent == (case.size - 1) * n for sent in elements)


def sent(elements, messages):
    """What was sent, in words: "each rank sent 300 elements in 3 messages"."""
    if len(set(elements)) == len(set(messages)) == 1:
        return f"each rank sent {amount(elements[0], messages[0])}"
    return ", ".join(f"rank {rank} sent {amount(e, m)}" for rank, (e, m) in enumerate(zip(elements, messages)))


def should(rule):
    """What a ring, or one all-reduce, sends."""
    if rule.words:
        return rule.words
    if rule.ring:
        if rule.elements and len(set(rule.elements)) == 1:
            return f"a ring sends {rule.elements[0]} in {rule.messages}"
        each = f", in {rule.messages} messages of each" if rule.messages else ""
        return f"a ring sends {rule.totals[0]} over all ranks{each}"
    if rule.totals == (0,):
        return "nothing has to be sent"
    return f"one all-reduce sends {rule.totals[0]} over all ranks"


def amount(elements, messages):
    """ "150 elements in 6 messages" """
    return f"{elements:g} elements in {messages} message{'s' * (messages != 1)}"
