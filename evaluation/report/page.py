"""Pieces of self-contained HTML pages: document, figures and tables."""

import base64
import html
from collections.abc import Sequence
from typing import Any

from evaluation.report.figures import Drawn

# Figures have a white background. Dark mode inverts them, and the rotation by 180
# degrees restores the hues.
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem;
       max-width: 72rem; }
p, dl { max-width: 62rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.headline { font-size: 1.1rem; border-left: 4px solid; padding-left: .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { padding: .3rem .4rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
td small, th small { display: block; opacity: .75; font: .7rem/1.4 system-ui; }
.best { font-weight: bold; background: var(--soft); }
.best::before { content: "\\2605\\00a0"; }
figure { margin: 1rem 0; } figure img { width: 100%; min-width: 34rem; height: auto; }
figcaption, .note { font-size: .85rem; opacity: .85; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem;
     font-size: .85rem; } dd { margin: 0; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  figure img { filter: invert(.92) hue-rotate(180deg); } }
@media print { body { max-width: none; } }
"""


def document(title: str, body: str) -> str:
    """Create an HTML document with inline styles.

    Args:
        title: Title and heading, escaped here.
        body: HTML of the content.
    """
    title = escaped(title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def escaped(value: Any) -> str:
    """Escape the text of a value for HTML."""
    return html.escape(str(value))


def figure(drawn: Drawn, *, heading: bool = True) -> str:
    """Embed a figure with its caption, by default below a heading."""
    image = base64.b64encode(drawn.path.read_bytes()).decode()
    title, text = escaped(drawn.title), escaped(drawn.text)
    above = f"<h2>{title}</h2>\n" if heading else ""
    return (
        f'{above}<figure><div class="wide"><img alt="{title}. {text}" '
        f'src="data:image/svg+xml;base64,{image}"></div>'
        f"<figcaption>{text}</figcaption></figure>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Create a table from the HTML of its head and cells."""
    first = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{first}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def cell(text: str, small: str = "", *, best: bool = False) -> str:
    """Create a table cell, with a note in small print and a mark for the best."""
    mark = ' class="best"' if best else ""
    small = f"<small>{escaped(small)}</small>" if small else ""
    return f"<td{mark}>{escaped(text)}{small}</td>"
