"""From controls to a picture: a pure function of the controls' values, drawn anew whenever one of them changes.

    slider, menu, ...  ->  draw(**values) -> Picture  ->  the SVG in an HTML widget, and its words for screen readers

    def draw(P, step): ...                                          # testable without a browser or a kernel
    Explorer(draw, {"P": whole("Ranks", 4, 2, 8), "step": whole("Step", 0, 0, 6)},
             adjust=lambda P, step: {"step": {"max": 2 * (P - 1)}})

Keys: Tab goes from control to control, arrows move a slider, Space ticks a box. Without a live kernel a notebook
shows the picture of the first values. What goes wrong in `draw` is shown below the controls: a ValueError as the
sentence it is (the learner asked for what cannot be), anything else with its traceback, for it is our mistake.
"""

from html import escape

import ipywidgets

UNSEEN = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"     # read aloud, not shown
PREPARE = """
const begin = tries => {
    const widget = element.closest('.refimpl-widget');      // not there before the page has put the pieces together
    if (!widget) return tries && setTimeout(begin, 100, tries - 1);
    const prepare = () => {
        widget.querySelectorAll('.widget-slider').forEach(slider =>
            slider.querySelectorAll('.noUi-handle:not([aria-label])').forEach(handle =>
                handle.setAttribute('aria-label', slider.querySelector('.widget-label').textContent)));
        widget.querySelectorAll('select').forEach(menu => menu.dataset.lmSuppressShortcuts = 'true');
    };
    prepare();
    new MutationObserver(prepare).observe(widget, {childList: true, subtree: true});
};
begin(50);
"""     # ipywidgets gives a slider a label, but its handle no name; JupyterLab would take a menu's arrows for its own
TROUBLE = "border-left:4px solid #D55E00;padding-left:8px;line-height:1.4"


class Explorer(ipywidgets.VBox):
    """Controls and the picture that they determine.

    draw        draw(**values) -> Picture, a pure function
    controls    {name: an ipywidgets control with a `value`}, in the order in which they stand
    adjust      adjust(**values) -> {name: {trait: value}}: settings that depend on other controls, such as a slider's
                maximum; applied before drawing
    name        a CSS class, by which tests in a browser find the widget; its picture is .refimpl-picture in it
    presets     {words: {name: value}}: a menu that moves several controls at once; it begins with the first

    .values     {name: value} as they are now        .shown    the Picture that is shown        .still()    the first
    """

    def __init__(self, draw, controls, adjust=None, name=None, presets=None):
        self.draw, self.controls, self.adjust = draw, dict(controls), adjust
        self.picture = ipywidgets.HTML()
        self.status = ipywidgets.HTML()
        self.errors = ipywidgets.Output()
        named = ipywidgets.Output(outputs=[{"output_type": "display_data", "metadata": {},
                                            "data": {"application/javascript": PREPARE, "text/plain": ""}}])
        self.moving = False
        self._adjust()
        self.first = self.shown = draw(**self.values)          # a mistake here is told where the widget is made
        self._show(self.first)
        for control in self.controls.values():
            control.observe(self._changed, "value")
        above = []
        if presets:
            menu = option("Example", presets)
            menu.observe(lambda change: self.set(**change["new"]), "value")
            above.append(menu)
        row = ipywidgets.HBox([*above, *self.controls.values()],
                              layout={"flex_flow": "row wrap", "align_items": "flex-start", "grid_gap": "2px 20px"})
        super().__init__([row, self.picture, self.status, self.errors, named])
        self.add_class("refimpl-widget")
        self.picture.add_class("refimpl-picture")
        if name:
            self.add_class(name)

    @property
    def values(self):
        """The controls' values, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **values):
        """Move controls, as a learner would, but all at once: one picture."""
        unknown = sorted(values.keys() - self.controls.keys())
        if unknown:
            raise ValueError(f"{unknown[0]}: there is no such control; there are {', '.join(self.controls)}")
        self.moving = True
        try:
            for _ in range(2):                                  # again, where the others have made room for a value
                for name, value in values.items():
                    self.controls[name].value = value
                self._adjust()
        finally:
            self.moving = False
        self.redraw()

    def still(self):
        """The picture of the first values: for a page without a kernel."""
        return self.first

    def redraw(self):
        """Draw the picture of the present values, or say why there is none."""
        try:
            self._adjust()
            self._show(self.draw(**self.values))
        except ValueError as error:
            self._say(str(error), TROUBLE)
        except Exception as error:
            self._say(f"The picture could not be drawn: {type(error).__name__}: {error}", TROUBLE)
            with self.errors:                                   # in a notebook: the traceback, below the picture
                raise

    def _changed(self, change):
        if not self.moving:
            self.redraw()

    def _adjust(self):
        if self.adjust is None:
            return
        moving, self.moving = self.moving, True                 # a slider whose maximum falls moves: no picture of that
        try:
            for name, traits in self.adjust(**self.values).items():
                for trait, value in traits.items():
                    if getattr(self.controls[name], trait) != value:
                        setattr(self.controls[name], trait, value)
        finally:
            self.moving = moving

    def _show(self, shown):
        self.shown = shown
        self.picture.value = shown.svg
        self._say(f"{shown.title}. {shown.words}")
        if self.errors.outputs:
            self.errors.outputs = ()

    def _say(self, words, style=UNSEEN):
        self.status.value = f'<div role="status" aria-live="polite" style="{style}">{escape(words)}</div>'

    def _repr_mimebundle_(self, include=None, exclude=None, **options):
        """The widget for a live kernel, the still picture for everybody else."""
        bundle = super()._repr_mimebundle_(include=include, exclude=exclude, **options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        data.update(self.first._repr_mimebundle_())
        return bundle


# -- controls, with what makes them usable by keyboard and by screen reader ---------------------------------------

WIDE = {"description_width": "initial"}


def whole(description, value, first, last, step=1):
    """A slider for whole numbers first .. last."""
    return ipywidgets.IntSlider(value, first, last, step, description=description, tooltip=description, style=WIDE)


def stops(description, value, numbers, write="{:g}".format):
    """A slider that stops at the given numbers only, in their order; `write` makes a number's words."""
    return ipywidgets.SelectionSlider(options=[(write(number), number) for number in numbers], value=value,
                                      description=description, tooltip=description, style=WIDE)


def round_numbers(first, last):
    """1, 2, 5, 10, 20, 50 and so on, from 10**first to 10**last: for `stops`."""
    return [float(f"{digit}e{power}") for power in range(first, last) for digit in (1, 2, 5)] + [float(f"1e{last}")]


def option(description, options, value=None):
    """A menu; options: words, or {words: value}, or [(words, value)]. ValueError for the value None."""
    pairs = list(options.items()) if isinstance(options, dict) else list(options)
    for pair in pairs:
        if isinstance(pair, tuple) and pair[1] is None:         # for a menu of ipywidgets, that nothing is chosen
            raise ValueError(f"{description}: {pair[0]!r} has the value None, and would leave the menu empty when it "
                             "is chosen again; 0 or a word would not")
    given = {} if value is None else {"value": value}
    return ipywidgets.Dropdown(options=pairs, description=description, tooltip=description, style=WIDE,
                               layout={"width": "max-content"}, **given)


def words_area(description, value, rows=4, columns=44):
    """A field of several lines; a picture for every key."""
    return ipywidgets.Textarea(value, description=description, rows=rows, style=WIDE,
                               layout={"width": f"{columns}ch", "height": "max-content"})


def switch(description, value=False):
    """A checkbox."""
    return ipywidgets.Checkbox(value, description=description, indent=False, layout={"width": "max-content"})
