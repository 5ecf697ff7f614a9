"""What a question is written in, as HTML: paragraphs, fenced code, code in backticks.

    as_html     for a page          as_field    for one field of a card, in a line of a file
"""

from html import escape


def as_html(text):
    """A text as HTML: paragraphs, fenced code, code in backticks."""
    parts = []
    for code, part in fenced(text):
        if code:
            parts.append(f"<pre>{escaped(part)}</pre>")
        else:
            parts += [f"<p>{inline(paragraph)}</p>" for paragraph in part.split("\n\n") if paragraph.strip()]
    return "".join(parts)


def as_field(text):
    """A text as HTML without what would end a field of a card: a tab, a line break, a quotation mark."""
    parts = "".join(f"<pre>{escaped(part)}</pre>" if code else inline(part) for code, part in fenced(text))
    return parts.replace('"', "&quot;").replace("\t", "    ").replace("\n", "<br>")


def fenced(text):
    """[(is it code?, the part)]: what is between the fences, and what is around them."""
    return [(bool(k % 2), part.strip("\n") if k % 2 else part) for k, part in enumerate(text.split("```"))]


def inline(text):
    """A paragraph as HTML, with code in backticks."""
    parts = enumerate(map(escaped, text.split("`")))
    return "".join(f"<code>{part}</code>" if k % 2 else part for k, part in parts)


def escaped(text):
    """Text in which < and & are themselves."""
    return escape(text, quote=False)
