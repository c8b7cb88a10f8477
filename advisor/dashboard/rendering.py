"""Turns templates and view models into pages; knows where templates and static files lie."""

import hashlib
import re
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

from jinja2 import DictLoader, Environment, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from advisor import __version__
from advisor.dashboard.filters import FILTERS
from advisor.dashboard.formats import plural
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.plain_text import clean_text

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "advisor_theme"


def find_web() -> Path:
    """Return the folder of templates and static files: inside the installed package, or beside it in a checkout.

    Raises FileNotFoundError with both places when neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "web", package.parent / "web"):
        if (folder / "templates").is_dir():
            return folder
    raise FileNotFoundError(
        f"The dashboard's templates are neither in {package / 'web'} nor in {package.parent / 'web'}: "
        "install fleet-advisor again."
    )


def find_plotly() -> Path:
    """Return the folder of the installed plotly package that holds plotly.min.js."""
    return Path(str(distribution("plotly").locate_file("plotly/package_data")))


def find_plotly_style_ids(script: Path) -> list[str]:
    """Return the ids under which plotly.js looks for style elements before it adds them.

    Its map library adds one as it loads, which the content policy forbids; where an element with that id stands in
    the page, it does not.
    """
    text = script.read_text(encoding="utf-8")
    return re.findall(
        r'getElementById\("([0-9a-f]{64})"\)\)\{var \w+=document\.createElement\("style"\)', text
    )


def _clean(value: object) -> object:
    """What a template is about to write: text of jobs and agents without terminal codes and direction marks."""
    return clean_text(value) if type(value) is str and not value.isprintable() else value


class Renderer:
    """Renders pages; undefined names in a template are errors, and everything is cleaned and escaped."""

    def __init__(self, web: Path) -> None:
        templates = web / "templates"
        self._templates = Environment(
            # All of one release, also while another is installed over it.
            loader=DictLoader(
                {
                    path.relative_to(templates).as_posix(): path.read_text(encoding="utf-8")
                    for path in templates.rglob("*.html")
                }
            ),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_clean,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(FILTERS)
        digest = hashlib.sha256()
        for path in sorted((web / "static").iterdir()):
            digest.update(path.read_bytes())
        self._templates.globals.update(
            version=__version__,
            plural=plural,
            catalogue=CATALOGUE,
            # Browsers may keep static files for ever: a new release has new addresses.
            static_version=digest.hexdigest()[:10],
            plotly_version=distribution("plotly").version,
            plotly_style_ids=find_plotly_style_ids(find_plotly() / "plotly.min.js"),
        )

    def render(
        self, request: Request, name: str, context: Mapping[str, object], status: int = 200
    ) -> Response:
        """Return the page `name` with `context`, in the theme that the browser asked for; 304 where it has it."""
        theme = request.cookies.get(THEME_COOKIE, "auto")
        page = self._templates.get_template(name).render(
            {
                "person": None,
                "form_key": "",
                "section": "",
                "refresh_s": 0,
                "live_url": "",
                **context,
                "theme": theme if theme in THEMES else "auto",
                "path": request.url.path,
            }
        )
        # Weak, for the same page may be sent compressed. No cache keeps it: the page's own script asks with it.
        tag = f'W/"{hashlib.sha256(page.encode()).hexdigest()[:20]}"'
        if status == 200 and tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"etag": tag})
        return HTMLResponse(page, status_code=status, headers={"etag": tag})
