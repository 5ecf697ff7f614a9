"""The map of the course: every dimension as a box, the need that leads to it on its left; the chosen one is explained.

    what is too much           cut                         composed                 here
    the batch           -->    [data parallelism]     -->  [ZeRO]
    the matrices        -->    [tensor parallelism]   -->  [sequence parallelism]   --> mesh --> layout --> cluster
    ...

A click on a box chooses it, as the menu does; keyboards have the menu. Beside the menu a link opens the chosen box's
lesson, in a tab of its own. It is an output and no `HTML` widget: JupyterLab follows the links in outputs itself, from
the notebook's folder, where one in an `HTML` widget would load the whole window anew. Words and numbers are those of
paradigms.py.
"""

from html import escape

import ipywidgets

from refimpl.course.paradigms import BATCH, GPUS, PARADIGMS, SEQUENCE, numbers
from refimpl.course.tracks import lessons
from refimpl.course.widgets.alpha_beta_explorer import bytes_words, seconds_words
from refimpl.course.widgets.interactive import Explorer, option
from refimpl.course.widgets.svg import arrow, bars, box, group, line, picture, text

OTHERS = {                                                           # boxes that are no dimension: title, lesson, text
    "ring": ("Ring all-reduce", "01", "Ranks, messages, and the collective under most of the others: "
             "a reduce-scatter and an all-gather around a ring."),
    "memory": ("Where memory goes", "03", "Weights, gradients, optimizer, activations: what a GPU holds, line "
               "by line. Look here before you cut."),
    "mesh": ("Composing", "10", "A place for each rank along every axis, groups, and the order that decides which "
             "messages leave a node."),
    "layout": ("Choosing a layout", "11", "All of the above for your model and your GPUs: what fits, what is fast, "
               "and by how much."),
    "cluster": ("Beyond the notebook", "12", "Processes, clusters, checkpoints that any layout reads, and failures."),
    "drill": ("Fact-check, interview", "13", "Claims about all this, right and wrong, recomputed; a mock interview."),
}
PLACES = {                                                           # column and row of each box
    "ring": (0, 0), "memory": (1, 0), "dp": (1, 1), "zero": (2, 1), "tp": (1, 2), "sp": (2, 2), "cp": (1, 3),
    "pp": (1, 4), "ep": (1, 5), "mesh": (3, 1), "layout": (3, 2), "cluster": (3, 3), "drill": (3, 4)}
NAMED = {**{p.key: (p.name, p.lesson) for p in PARADIGMS},
         **{key: (title, lesson) for key, (title, lesson, _) in OTHERS.items()}}          # what stands in each box
ARROWS = [("dp", "zero"), ("tp", "sp"), ("mesh", "layout"), ("layout", "cluster"), ("cluster", "drill")]
X, WIDE, TALL, TOP, STEP = (12, 226, 440, 664), 180, 40, 66, 56      # pixels
CHOICES = {**{p.name: p.key for p in PARADIGMS}, **{title: key for key, (title, _, _) in OTHERS.items()}}
CLICK = ("const s=this.closest('.course-map')?.querySelector('select');"
         "if(s){{s.selectedIndex={};s.dispatchEvent(new Event('change',{{bubbles:true}}))}}")


def draw_map(chosen="dp", clickable=False):
    """All boxes, and what is to be said about the chosen one: a `Picture`. clickable: clicks move the menu."""
    if chosen not in PLACES:
        raise ValueError(f"there is no box {chosen!r}; there are {', '.join(PLACES)}")
    title, lesson = NAMED[chosen]
    shapes = [text(12, 24, "What is too much for one GPU, and what to do about it", 16, bold=True),
              text(12, 44, "One box is one lesson. Choose a box to see its idea and its cost.", kind="faint")]
    for p in PARADIGMS:
        column, row = PLACES[p.key]
        if column == 1:
            y = TOP + row * STEP
            words = wrapped(p.need, 12, y + TALL / 2, 176)
            shapes += [group(*words, y=4 - 8.5 * (len(words) - 1)), stub(190, row, X[1] - 4)]
    for start, end in ARROWS:
        (a, b), (c, d) = PLACES[start], PLACES[end]
        if b == d:
            shapes.append(stub(X[a] + WIDE + 4, b, X[c] - 4))
        else:
            x = X[a] + WIDE / 2
            shapes.append(arrow(x, TOP + b * STEP + TALL + 3, x, TOP + d * STEP - 3, width=1.5))
    shapes += together()
    for number, key in enumerate(CHOICES.values()):
        column, row = PLACES[key]
        name, where = NAMED[key]
        kind = "purple" if key == chosen else "forward" if key not in OTHERS else "plain"
        shape = box(X[column], TOP + row * STEP, WIDE, TALL, f"{where}  {name}", kind, 13, key == chosen)
        if clickable:
            shape = f'<g style="cursor:pointer" onclick="{escape(CLICK.format(number))}">{shape}</g>'
        shapes.append(shape)
    low = TOP + 6 * STEP + 8
    said, told = explained(chosen, low)
    return picture(856, low + 158, *shapes, said, title=f"The map: lesson {lesson}, {title}", words=told)


def stub(x, row, end):
    """An arrow along a row."""
    y = TOP + row * STEP + TALL / 2
    return arrow(x, y, end, y, width=1.5)


def together():
    """Lines from every row into the box where all are composed."""
    x, middle = X[3] - 20, lambda row: TOP + row * STEP + TALL / 2
    last = {row: max(X[c] for c, r in PLACES.values() if r == row and 0 < c < 3) + WIDE for row in range(1, 6)}
    return [*(line([(end + 4, middle(row)), (x, middle(row))], "ink", 1.5) for row, end in last.items()),
            line([(x, middle(1)), (x, middle(5))], "ink", 1.5), stub(x, 1, X[3] - 4),
            text(x - 8, middle(4.5) + 4, "and all of them together", 12, "end", kind="faint")]


def explained(chosen, y):
    """What there is to say about a box: (shapes, words)."""
    if chosen in OTHERS:
        title, lesson, words = OTHERS[chosen]
        heading = text(12, y + 14, f"{title}, lesson {lesson}", 15, bold=True)
        return "".join([heading, *wrapped(words, 12, y + 38, 820)]), words
    p, now, alone = next(p for p in PARADIGMS if p.key == chosen), numbers(chosen), numbers("one")
    lines = [("cut", p.cut), ("sent", p.sent), ("how often", p.often), ("link", p.link), ("a rank sends", p.formula)]
    shapes = [text(12, y + 14, f"{p.name}, lesson {p.lesson}", 15, bold=True), *wrapped(p.idea, 12, y + 34, 820)]
    for k, (name, words) in enumerate(lines):
        shapes += [text(96, y + 60 + 19 * k, name, 12, "end", kind="faint"), text(106, y + 60 + 19 * k, words, 12)]
    model = "Llama 3 8B" if p.model.startswith("llama") else "Mixtral 8x7B"
    shapes.append(text(520, y + 60, f"{model} on {GPUS} GPUs, {BATCH} sequences of {SEQUENCE}", 12, bold=True))
    shapes.append(bars(520, y + 70, [
        ("states", now.states, bytes_words(now.states), "forward"),
        ("other", now.others, bytes_words(now.others), "forward"),
        ("sent", now.sent, f"{bytes_words(now.sent)}, {seconds_words(now.inside)} or {seconds_words(now.between)}",
         "backward")], 110, longest=max(alone.states, now.states, now.sent), height=15, gap=6, labels=52, size=12))
    shapes.append(text(520, y + 146, "seconds: over NVLink, or between nodes", 11, kind="faint"))
    told = (f"{p.idea} It cuts {p.cut}. Sent are {p.sent}, {p.often}. Link: {p.link}. On {GPUS} GPUs {model} has "
            f"{bytes_words(now.states)} of states and {bytes_words(now.others)} of other things on a rank, which sends "
            f"{bytes_words(now.sent)} in {now.messages:,} messages a step.")
    return "".join(shapes), told


def wrapped(words, x, y, width, size=13):
    """Words in as many lines as they need: shapes."""
    lines, line = [], ""
    for word in words.split():
        if line and len(line) + 1 + len(word) > width / (size * 0.5):
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [text(x, y + k * (size + 4), each, size) for k, each in enumerate([*lines, line])]


def way_into(chosen):
    """The link to the lesson of a box, as the output of a cell. Its file lies beside the notebook that has the map."""
    number = NAMED[chosen][1]
    title, _, file = lessons()[number][0]
    words = f"Open lesson {number}: {title}"
    link = f'<a href="{file}" style="display:inline-block;margin:4px 3px">{escape(words)}</a>'
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": link, "text/plain": words}}


def CourseMap(chosen="dp"):
    """The widget: a menu of all boxes, the boxes themselves to click on, and the way into the lesson of the chosen."""
    menu, way = option("Look at", CHOICES, chosen), ipywidgets.Output(outputs=[way_into(chosen)])
    menu.observe(lambda change: way.set_trait("outputs", (way_into(change["new"]),)), "value")
    explorer = Explorer(lambda chosen: draw_map(chosen, clickable=True), {"chosen": menu}, name="course-map")
    explorer.children[0].children += (way,)
    return explorer
