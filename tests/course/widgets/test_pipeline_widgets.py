"""The explorer and the stepper of pipelines say what the timeline says, moment by moment."""

import time
from xml.etree import ElementTree

import pytest

from refimpl.course.widgets import PipelineExplorer, PipelineStepper
from refimpl.course.widgets import pipeline_stepper as stepper
from refimpl.course.widgets.pipeline_explorer import LEFT, NOTHING, PRESETS, RIGHT, WIDTH, draw_pipelines, timed
from refimpl.course.widgets.pipeline_stepper import draw_moment, kept, moments, state
from refimpl.pipeline import FAMILIES, build, simulate
from refimpl.pipeline.action import parts


def boxes(shown):
    """[(kind, what it says under the mouse)] of all boxes that say something, in order."""
    found = []
    for element in ElementTree.fromstring(shown.svg).iter():
        if element.tag.endswith("}rect") and len(element):
            found.append((element.get("class"), element[0].text))
    return found


def words_of(shown):
    return [element.text for element in ElementTree.fromstring(shown.svg).iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_action_and_every_gap_is_a_box_with_its_times(name):
    t = simulate(build(name, 4, 8), hop=0.25)
    found = boxes(draw_pipelines(name, NOTHING, 4, 8, 2, hop=0.25))
    colours = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}
    expected = [(colours[half.kind], f"{action}: {start:g} to {end:g}")
                for row, starts, ends in zip(t.schedule.ranks, t.starts, t.ends)
                for action, start, end in zip(row, starts, ends) for half in parts(action)]
    assert sorted(expected) == sorted(box for box in found if box[0] != "idle")
    assert sorted(f"idle {gap}" for gaps in t.idle for gap in gaps) == sorted(w for k, w in found if k == "idle")


def test_a_box_lies_where_its_times_say():
    t = simulate(build("zb_h1", 3, 4))
    shown = draw_pipelines("zb_h1", NOTHING, 3, 4)
    scale = (WIDTH - LEFT - RIGHT) / t.makespan
    places = {e[0].text: (float(e.get("x")), float(e.get("width")))
              for e in ElementTree.fromstring(shown.svg).iter() if e.tag.endswith("}rect") and len(e)}
    for row, starts, ends in zip(t.schedule.ranks, t.starts, t.ends):
        for action, start, end in zip(row, starts, ends):
            x, width = places[f"{action}: {start:g} to {end:g}"]
            assert abs(x - LEFT - start * scale) < 0.1 and abs(width - (end - start) * scale) < 1


def test_two_schedules_share_a_scale_of_time():
    shown = draw_pipelines("zb_h1", "1f1b", 4, 8)
    lanes = [float(e.get("width")) for e in ElementTree.fromstring(shown.svg).iter()
             if e.tag.endswith("}rect") and e.get("class") == "idle" and not len(e) and e.get("height") == "24"]
    assert len(lanes) == 8 and lanes[0] / lanes[4] == pytest.approx(27 / 33, rel=1e-4)
    assert "zb_h1: takes 27, of which 11.1% is bubble; a rank keeps 4 at most; 24 messages each way" in shown.words
    assert "1f1b: takes 33, of which 27.3% is bubble" in shown.words


def test_the_number_of_chunks_counts_only_where_there_is_a_choice():
    assert timed("1f1b", 4, 8, 3).schedule.chunks == 1
    assert timed("interleaved", 4, 8, 3).schedule.chunks == 3
    assert timed("zbv", 4, 8, 3).schedule.chunks == 2


def test_the_explorer_moves_and_says_what_there_is_not():
    explorer = PipelineExplorer()
    for words, values in PRESETS.items():
        explorer.children[0].children[0].label = words
        assert explorer.shown == draw_pipelines(**values)
    explorer.set(name="interleaved", other=NOTHING, p=4, m=9, v=2)
    assert "8 or 10 micro-batches work" in explorer.status.value
    explorer.set(m=8)
    assert "interleaved with 2 chunks" in explorer.shown.words


def test_the_slider_for_chunks_rests_where_it_would_change_nothing():
    explorer = PipelineExplorer()
    assert explorer.controls["v"].disabled
    assert draw_pipelines("1f1b", "gpipe", v=2) == draw_pipelines("1f1b", "gpipe", v=4)
    for name, other in (("interleaved", "1f1b"), ("gpipe", "looped_bfs"), ("interleaved_zb", NOTHING)):
        explorer.set(name=name, other=other)
        assert not explorer.controls["v"].disabled
    explorer.set(name="zbv", other=NOTHING)
    assert explorer.controls["v"].disabled


@pytest.mark.parametrize("name", stepper.NAMES)
@pytest.mark.parametrize("p, m", [(4, 8), (2, 2), (1, 3), (3, 6)])
def test_over_all_moments_a_rank_keeps_its_peak_and_no_more(name, p, m):
    t = timed(name, p, m, 2)
    times = moments(name, p, m)
    assert times == sorted(set(times)) and times[0] == 0 and times[-1] == t.makespan
    for rank in range(p):
        most = max(len(kept(t, rank, now)) for now in times)
        assert most / t.schedule.chunks == t.peak_activations[rank]
        assert kept(t, rank, t.makespan) == []


def test_each_rank_does_what_its_times_say():
    t = timed("1f1b", 3, 4, 1)
    for rank in range(3):
        seconds = {"does": 0.0, "waits": 0.0, "done": 0.0}
        times = moments("1f1b", 3, 4)
        for now, after in zip(times, times[1:]):
            what, of = state(t, rank, now)
            seconds[what] += after - now
            if what == "does":
                position = t.schedule.ranks[rank].index(of)
                assert t.starts[rank][position] <= now < t.ends[rank][position]
        assert seconds["does"] == t.busy[rank] == 12
        assert seconds["waits"] + seconds["done"] == t.idle_seconds[rank]


def test_each_message_is_shown_when_it_is_handed_on():
    for name in stepper.NAMES:
        t = timed(name, 4, 8, 2)
        sent = [half for now in moments(name, 4, 8) for half, source, target in stepper.handed_on(t, now)]
        assert len(sent) == len(set(sent)) == 2 * t.messages["forward"]


def test_a_moment_in_words_and_in_the_picture():
    shown = draw_moment("1f1b", 4, 6, 9)
    assert shown.title == "1f1b: time 10 of 27"
    assert shown.words == ("rank 0 does 0B0 and keeps 4; rank 1 does 1F3 and keeps 3; rank 2 does 2B1 and keeps 2; "
                           "rank 3 does 3B2 and keeps 1.")
    words = words_of(shown)
    assert {"does 0B0", "F0", "1B0", "does now", "keeps activations of"} <= set(words)
    assert "rank 3 waits for 2F0 of rank 2 and keeps 0" in draw_moment("1f1b", 4, 6, 0).words
    assert "rank 3 is done and keeps 0" in draw_moment("1f1b", 4, 6, len(moments("1f1b", 4, 6)) - 2).words


def test_a_moment_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="moment=99: 1f1b on 4 ranks with 6 micro-batches has moments 0 to"):
        draw_moment(moment=99)


def test_the_stepper_steps_and_its_end_moves():
    widget = PipelineStepper()
    widget.controls["moment"].value = 9
    assert widget.shown == draw_moment("1f1b", 4, 6, 9)
    widget.set(name="gpipe", p=2, m=1)
    assert widget.controls["moment"].max == len(moments("gpipe", 2, 1)) - 1 and widget.controls["moment"].value <= 5
    widget.set(name="interleaved", p=3, m=7)
    assert "6 or 8 micro-batches work" in widget.status.value
    widget.set(m=8)
    assert "interleaved" in widget.shown.title


def test_pictures_take_a_few_milliseconds():
    for draw in (lambda: draw_pipelines("1f1b", "gpipe", 8, 16), lambda: draw_moment("interleaved", 4, 8, 20)):
        draw()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            draw()
            times.append(time.perf_counter() - began)
        assert min(times) < 30e-3
