"""How pictures look: one palette, a light and a dark theme, for pages and for files.

    kind        colour               means, wherever it appears                 shape or label says it, too
    forward     #0072B2 blue         forward work, what is sent now
    backward    #D55E00 vermilion    backward work, what waits or is wrong
    weight      #009E73 green        weight gradients, what is finished
    purple      #CC79A7              a fourth thing                             Okabe & Ito 2008

Paper, ink and lines follow JupyterLab's theme (its `--jp-...` variables); a picture on its own, in a file or on a web
page, follows the reader's system. The four colours are the same on both papers: contrast 3 : 1 or more on either.
A style in an SVG on a page is a style of the page, so every rule begins with `svg.rf`.
"""

PALETTE = {"forward": "#0072B2", "backward": "#D55E00", "weight": "#009E73", "purple": "#CC79A7"}
ON = {"forward": "#FFFFFF", "backward": "#000000", "weight": "#000000", "purple": "#000000"}      # ink on them: 4.5 : 1
NEUTRAL = ("plain", "soft", "idle", "ink", "none")
KINDS = (*PALETTE, *NEUTRAL)

LIGHT = {"paper": "#FFFFFF", "soft": "#F2F2F2", "idle": "#E0E0E0", "ink": "#1A1A1A", "faint": "#595959",
         "line": "#767676"}
DARK = {"paper": "#111111", "soft": "#242424", "idle": "#3A3A3A", "ink": "#F0F0F0", "faint": "#B8B8B8",
        "line": "#8C8C8C"}
JUPYTERLAB = {"paper": "--jp-layout-color0", "ink": "--jp-content-font-color0"}    # its other colours are too pale


def check_kind(kind):
    """The kind itself. ValueError unless there is such a kind."""
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: must be one of {', '.join(KINDS)}")
    return kind


def style():
    """The `<style>` element that every picture carries."""
    return f"<style>{_RULES}</style>"


def _variables(colours, follow):
    """Declarations of the theme's variables; `follow`: take JupyterLab's own where it has one."""
    return "".join(f"--rf-{name}:{f'var({JUPYTERLAB[name]},{value})' if follow and name in JUPYTERLAB else value};"
                   for name, value in colours.items())


def _rules():
    """All rules: variables for the two themes, then what each kind of shape and text does with them."""
    rules = [
        f"svg.rf{{{_variables(LIGHT, False)}font-family:system-ui,sans-serif;max-width:100%;height:auto}}",
        f"@media (prefers-color-scheme:dark){{svg.rf{{{_variables(DARK, False)}}}}}",
        f"body[data-jp-theme-light=true] svg.rf{{{_variables(LIGHT, True)}}}",
        f"body[data-jp-theme-light=false] svg.rf{{{_variables(DARK, True)}}}",
        "svg.rf .paper{fill:var(--rf-paper)}",
        "svg.rf .plain{fill:var(--rf-paper);stroke:var(--rf-line)}",
        "svg.rf .soft{fill:var(--rf-soft);stroke:var(--rf-line)}",
        "svg.rf .idle{fill:var(--rf-idle)}", "svg.rf .ink{fill:var(--rf-ink)}", "svg.rf .none{fill:none}",
        *(f"svg.rf .{kind}{{fill:{colour}}}" for kind, colour in PALETTE.items()),
        "svg.rf .stroke{fill:none;stroke:var(--rf-line)}", "svg.rf .stroke.ink{fill:none;stroke:var(--rf-ink)}",
        "svg.rf .stroke.idle{fill:none;stroke:var(--rf-idle)}",
        *(f"svg.rf .stroke.{kind}{{fill:none;stroke:{colour}}}" for kind, colour in PALETTE.items()),
        "svg.rf .faint{fill:var(--rf-faint)}",
        "svg.rf .mono{font-family:ui-monospace,monospace}",
        "svg.rf .halo{paint-order:stroke;stroke:var(--rf-paper);stroke-width:4px}",
        *(f"svg.rf .on-{kind}{{fill:{colour}}}" for kind, colour in ON.items()),
    ]
    return "".join(rules)


_RULES = _rules()
