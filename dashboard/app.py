"""The Dash application: the frame of every page, and answers made safe.

Everything is served from this machine; a content policy forbids the page to ask anyone else.
"""

from __future__ import annotations

import gzip
import secrets
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from dash import Dash, dcc, html
from flask import Flask, Response, request
from werkzeug.routing import PathConverter

from lldscope.core.palette import DARK, LIGHT, variables

from . import callbacks as live
from .data.run_registry import RunRegistry
from .data.run_summaries import RunSummaries
from .pages.router import is_page
from .routes import add_routes
from .security import add_answers, at, content_policy
from .shared_answers import share_refreshes

_INDEX_ROUTES = ("/", "/<path:path>")  # Dash's page for every address
_NONCE = b'nonce=""'  # filled by `_finish`

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect "
    "width='16' height='16' rx='4' fill='%231a6fab'/%3E%3Cpath d='M3 6q3-3 5 1t5 5' fill='none' "
    "stroke='white' stroke-width='1.8' stroke-linecap='round'/%3E%3C/svg%3E"
)

# A token in the address does not stay there; style sheets that scripts add show the nonce of the
# page's own.
_HEAD_SCRIPT = """
(function () {
  var nonce = document.querySelector("style").nonce, create = document.createElement;
  document.createElement = function (name) {
    var made = create.apply(this, arguments);
    if (String(name).toLowerCase() === "style") made.nonce = nonce;
    return made;
  };
  var url = new URL(location.href);
  if (url.searchParams.has("token")) {
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
})();
"""


_CSS = (
    f":root{{color-scheme:light;{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{variables(DARK)}}}}}"
)
_INDEX = f"""<!DOCTYPE html>
<html lang="en">
<head>
{{%metas%}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{%title%}}</title>
<link rel="icon" href="{_ICON}">
<style nonce="">{_CSS}</style>
<script>{_HEAD_SCRIPT}</script>
{{%css%}}
</head>
<body>
{{%app_entry%}}<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
</body>
</html>"""

_ALIVE = ("application/json", "text/html")  # made anew for each request
_PACKED = (*_ALIVE, "application/javascript", "text/javascript", "text/css")


class _AnyPath(PathConverter):
    """A part of an address with any characters: a folder's name may hold a line feed."""

    regex = "(?s:[^/].*?)"


def make_app(registry: RunRegistry, prefix: str = "") -> Dash:
    """The dashboard over the runs of a registry; `app.server` is its WSGI application. To a browser
    every path begins with `prefix`."""
    server = Flask(__name__)
    server.url_map.converters["path"] = _AnyPath
    add_answers(server)
    summaries = RunSummaries(registry)
    app = Dash(
        "lldscope",
        server=server,  # type: ignore[arg-type]
        title="lldscope",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
        suppress_callback_exceptions=True,
        index_string=_INDEX,
        serve_locally=True,
        routes_pathname_prefix="/",
        requests_pathname_prefix=f"{prefix}/",
    )
    app.layout = _frame  # made for each request, which has the prefix
    live.register(app, registry, summaries)
    add_routes(server, registry, summaries)
    share_refreshes(server, registry)
    scripts = [_HEAD_SCRIPT, app.renderer]  # that stand in the page itself
    server.after_request(lambda response: _finish(response, scripts))
    return app


def _frame() -> html.Div:
    """The frame of every page; a callback fills in the content."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="again"),
            dcc.Store(id="busy"),
            html.A("Skip to the content", href="#page", className="skip"),
            html.Nav(
                [
                    html.A([html.Span("lld", className="mark"), "scope"], href=at("/"), id="brand",
                           className="brand"),
                    html.A("Runs", href=at("/")),
                    html.Button("Keys", id="help", className="button plain first",
                                title="keyboard: ?"),
                ]
            ),
            html.Main(id="page", tabIndex=-1),
        ]
    )


def _finish(response: Response, scripts: list[str]) -> Response:
    """Add policy headers and compression, which a forwarded port needs, to every answer."""
    nonce = None
    if request.endpoint in _INDEX_ROUTES and response.mimetype == "text/html":
        nonce = secrets.token_urlsafe(16)
        response.set_data(response.get_data().replace(_NONCE, f'nonce="{nonce}"'.encode(), 1))
        if not is_page(quote(request.path)):  # as the browser has it; Flask has decoded it
            response.status_code = 404
    response.headers["Content-Security-Policy"] = content_policy(scripts, nonce)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    # Pages of other origins may neither embed an answer nor keep a handle on our window.
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    kind = response.mimetype
    packs = "gzip" in request.headers.get("Accept-Encoding", "") and kind in _PACKED
    if packs and response.status_code == 200 and "Content-Encoding" not in response.headers:
        response.direct_passthrough = False
        body = response.get_data()
        if len(body) > 1500:
            alive = kind in _ALIVE
            response.set_data(gzip.compress(body, compresslevel=3) if alive else _pack_file(body))
            response.headers["Content-Encoding"] = "gzip"
            response.headers["Vary"] = "Accept-Encoding"
    return response


@lru_cache(maxsize=64)  # scripts do not change while the server runs
def _pack_file(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6)
