"""Pages: self-contained HTML from the templates of this package, everything from the data escaped."""

import math
import re

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from .. import __version__
from .plots import COLORS, color_of
from .verdicts import percent


def render(template: str, **values) -> str:
    """
    Render a page.

    Args:
        template (`str`):
            Name of a template of this package.
        values:
            What it shows. Texts are escaped; only `Markup`, such as the plots, is not.

    Returns:
        `str`: an HTML page that needs no other file, no script and no network.
    """
    environment = Environment(
        loader=PackageLoader("trl_dara.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": show_percent, "number": show_number, "breakable": _breakable, "prose": _prose}
    environment.globals |= {"color_of": color_of, "dashed_from": len(COLORS), "version": __version__}
    return environment.get_template(template).render(**values)


def show_percent(share: float | None) -> str:
    return percent(math.nan if share is None else share)


def show_number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def _prose(text: str) -> Markup:
    """Escape a sentence, show what it has between backticks as code, and keep numbers with their percent sign."""
    html = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", html))


def _breakable(name: str) -> Markup:
    """Escape a name and let a line break after its underscores."""
    return escape(name).replace("_", Markup("_<wbr>"))
