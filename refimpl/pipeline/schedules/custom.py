"""A schedule of your own: the lists as you wrote them, checked.

    build("custom", stages=2, microbatches=2, ranks=["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"])
"""

from refimpl.pipeline.action import Action, Pair, parse, parts
from refimpl.pipeline.check import check
from refimpl.pipeline.schedule import Schedule, place

NAME = "custom"
ABOUT = "lists of your own, checked"


def custom(stages, microbatches, chunks=1, ranks=None, placement=None):
    """The schedule with these lists; ValueError, with the reason, when it could not run.

    ranks        per rank its actions: a list of strings, of `Action` and `Pair`, or one string with blanks between
    placement    which rank has which stage: "loop", "v", or a list with the rank of every stage; None: a V if rank 0
                 has something to do for the last of two stages a rank, else a loop
    """
    if ranks is None:
        raise ValueError("custom needs ranks=[...]: for every rank its actions, such as '0F0 0F1 0B0 0B1'")
    if isinstance(ranks, str):
        raise ValueError(f"ranks={ranks!r}: give a list with one string, or list, for every rank")
    rows = [[read(action, rank) for action in (row.split() if isinstance(row, str) else row)]
            for rank, row in enumerate(ranks)]
    if placement is None:
        of_rank_0 = {half.stage for action in rows[0] for half in parts(action)} if rows else set()
        placement = "v" if chunks == 2 and 2 * stages - 1 in of_rank_0 else "loop"
    schedule = Schedule(NAME, stages, microbatches, chunks, place(placement, stages, chunks), rows)
    check(schedule)
    return schedule


def read(action, rank):
    """An `Action` or `Pair` from its string; ValueError that says on which rank it stands."""
    if isinstance(action, Action | Pair):
        return action
    try:
        return parse(str(action))
    except ValueError as error:
        raise ValueError(f"rank {rank}: {error}") from None
