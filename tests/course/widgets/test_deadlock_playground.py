"""The playground: the orders run as written, and the picture says who waits for whom, as the run's report does."""

import re
from xml.etree import ElementTree

import pytest

from refimpl.course.widgets import DeadlockPlayground
from refimpl.course.widgets.deadlock_playground import ALL_SEND, PRESETS, draw_deadlock, explain, parse, play

ENDS = {"all send, then receive": "DeadlockError", "the same with small arrays": None, "one receives first": None,
        "sendrecv": None, "isend, recv, wait": None, "all receive first": "DeadlockError",
        "one message too few": "DeadlockError", "one receive too few": "UndeliveredMessageError"}


@pytest.mark.parametrize("name", PRESETS)
def test_the_examples_end_as_their_names_say(name):
    outcome = play(**PRESETS[name])
    assert outcome.error == ENDS[name]
    if outcome.error != "DeadlockError":                                 # every line was done, at a time of its own
        assert [sorted(done) for done in outcome.done] == [list(range(len(p))) for p in outcome.programs]
        times = sorted(time for done in outcome.done for time in done.values())
        assert times == list(range(1, len(times) + 1)) and outcome.waits == {}


def test_a_circle_is_seen_and_its_lines_are_named():
    outcome = play(ALL_SEND, large=True)
    assert outcome.waits == {0: 1, 1: 2, 2: 0} and outcome.circle == [0, 1, 2, 0] and outcome.done == [{}, {}, {}]
    assert re.findall(r"at (rank\d\.py:\d+)", outcome.report) == ["rank0.py:1", "rank1.py:1", "rank2.py:1"]
    assert "rank 0 waits for rank 1 waits for rank 2 waits for rank 0" in explain(outcome)


def test_the_line_at_which_a_rank_waits_is_the_one_in_the_report():
    outcome = play("0: recv 1; sendrecv 1 1; recv 1\n1: send 0; sendrecv 0 0; recv 0", large=True)
    assert outcome.waits == {0: 1, 1: 0} and [len(done) for done in outcome.done] == [2, 2]
    assert re.findall(r"at (rank\d\.py:\d+)", outcome.report) == ["rank0.py:3", "rank1.py:3"]
    outcome = play("0: isend 1; wait\n1: recv 0; recv 0", large=True)
    assert outcome.waits == {1: 0} and "rank1.py:2" in outcome.report
    outcome = play("0: isend 1; wait\n1: recv 2\n2:", large=True)                 # a wait can be what hangs
    assert outcome.waits == {0: 1, 1: 2} and "rank0.py:2" in outcome.report


def test_a_deadlock_without_a_circle_names_who_has_gone():
    outcome = play(**PRESETS["one message too few"])
    assert outcome.circle is None and outcome.waits == {0: 1, 2: 0}
    assert "rank 0 waits for rank 1, rank 2 waits for rank 0. But rank 1 has returned" in explain(outcome)


def test_only_large_arrays_wait_for_their_receiver():
    assert play("send 1; recv 1\nsend 0; recv 0", large=False).error is None
    assert play("send 1; recv 1\nsend 0; recv 0", large=True).circle == [0, 1, 0]


def test_the_picture_has_every_line_its_state_the_arrows_and_the_report():
    shown = draw_deadlock(**PRESETS["one message too few"])
    whole = ElementTree.fromstring(shown.svg)
    words = [e.text for e in whole.iter() if e.tag.endswith("}text")]
    kinds = [e.get("class") for e in whole.iter() if e.tag.endswith("}rect") and len(e)]              # with a hint
    assert kinds == ["weight", "backward", "weight", "backward"]
    for line in ("comm.recv(1)", "comm.send(x, 0)", "comm.recv(0)", "rank 1 has returned", "Deadlock", "waits"):
        assert line in [word.strip() for word in words]
    assert sum(e.tag.endswith("}polygon") for e in whole.iter()) == 2                                 # arrow heads
    assert shown.words == explain(play(**PRESETS["one message too few"]))


def test_lines_that_are_never_reached_are_grey():
    whole = ElementTree.fromstring(draw_deadlock(ALL_SEND, True).svg)
    kinds = [e.get("class") for e in whole.iter() if e.tag.endswith("}rect") and len(e)]
    assert kinds == ["backward", "idle"] * 3


RING = "\n".join(f"{r}: sendrecv {(r + 1) % 5} {(r + 4) % 5}" for r in range(5))


@pytest.mark.parametrize("orders", ["send 1\nrecv 0", RING, "0:\n1:", "0: ;;\n recv 0",
                                    "0: send 1; send 1; send 1; send 1; send 1\n1: "])
@pytest.mark.parametrize("large", [True, False])
def test_whatever_can_be_written_has_a_picture(orders, large):
    ElementTree.fromstring(draw_deadlock(orders, large).svg)


def test_orders_are_read_with_and_without_the_ranks_number():
    assert parse("0: send 1; recv 1\nsendrecv 0 0;") == [[("send", 1), ("recv", 1)], [("sendrecv", 0, 0)]]


@pytest.mark.parametrize("orders, says", [
    ("send 1", "1 line: write one for each rank, for 2 to 5 ranks"),
    ("\n".join(["recv 0"] * 6), "6 lines: write one for each rank"),
    ("sen 1\nrecv 0", "rank 0: 'sen' is no order; there are send, recv, isend, wait, sendrecv"),
    ("send\nrecv 0", "rank 0: 'send': write send and one rank"),
    ("send 1 2\nrecv 0", "rank 0: 'send 1 2': write send and one rank"),
    ("sendrecv 1\nrecv 0", "write sendrecv and two ranks, the one to send to first"),
    ("send 1\nrecv 1", "rank 1: 'recv 1': the other rank may be 0"),
    ("send 2\nrecv 0", "rank 0: 'send 2': the other rank may be 1"),
    ("send x\nrecv 0\n2:", "rank 0: 'send x': the other rank may be 1, 2"),
    ("send -1\nrecv 0", "the other rank may be 1"),
    ("wait\nrecv 0", "rank 0: wait without an isend"),
    ("isend 1\nrecv 0", "rank 0: an isend must be waited for"),
    ("isend 1; isend 1; wait; wait\nrecv 0", "rank 0: isend before the last one: each isend has one wait"),
    ("1: send 1\nrecv 0", "line 1 begins '1:': it is rank 0's; begin it with 0:"),
    ("send 1; send 1; send 1; send 1; send 1; send 1\nrecv 0", "rank 0: 6 orders; at most 5"),
    ("__import__('os')\nrecv 0", "is no order"),
])
def test_what_cannot_be_run_is_refused_in_one_sentence(orders, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        draw_deadlock(orders)


def test_the_widget_plays_at_every_key_and_from_the_menu():
    playground = DeadlockPlayground()
    assert playground.shown.title.startswith("Deadlock")
    menu = playground.children[0].children[0]
    assert [words for words, _ in menu.options] == list(ENDS)
    menu.label = "one receives first"
    assert playground.shown.title.startswith("Finished") and playground.values == PRESETS["one receives first"]
    playground.controls["orders"].value = "0: sen"
    assert "1 line" in playground.status.value and playground.shown.title.startswith("Finished")
    playground.controls["orders"].value = "0: send 1\n1: recv 0"
    assert "2 ranks" in playground.shown.svg and "1 line" not in playground.status.value
