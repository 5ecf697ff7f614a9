"""All-to-all: every rank has one array for every rank. P-1 exchanges, each with another partner.

    step 1: send to r+1, receive from r-1      step 2: send to r+2, receive from r-2      ...

Nobody sends to a rank that somebody else is sending to, so equal parts of n elements take (P-1)(alpha + n beta).
A rank sends all its parts but its own, which never leaves it.
"""


def all_to_all(parts, comm):
    """parts[k] goes to rank k; the list of what came, parts from rank 0 first.

    parts: P arrays of one dtype, any shapes    sends the sizes of all parts but parts[rank], in P-1 messages
    """
    P, r = comm.size, comm.rank
    received = [None] * P
    received[r] = parts[r].copy()
    for step in range(1, P):
        dst, src = (r + step) % P, (r - step) % P
        received[src] = comm.sendrecv(parts[dst], dst=dst, src=src)
    return received
