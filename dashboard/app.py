"""The Dash application: frame of every page, and the server's answers made safe.

Everything is served from this machine; a content policy forbids the page to ask anyone else.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from pathlib import Path
from typing import cast

from dash import Dash, dcc, html
from flask import Flask, Response, request

from . import live, theme
from .shelf import Shelf

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect "
    "width='16' height='16' rx='4' fill='%231a6fab'/%3E%3Cpath d='M3 6q3-3 5 1t5 5' fill='none' "
    "stroke='white' stroke-width='1.8' stroke-linecap='round'/%3E%3C/svg%3E"
)

# The theme is set before the first paint; a token in the address does not stay there.
_HEAD_SCRIPT = """
(function () {
  var url = new URL(location.href), asked = url.searchParams.get("theme");
  try { asked = asked || localStorage.getItem("lldscope-theme"); } catch (e) {}
  if (asked === "light" || asked === "dark") document.documentElement.dataset.theme = asked;
  if (url.searchParams.has("token")) {
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
})();
"""

# Pages with charts fetch Plotly while they are asked for, not after they have come; Dash's own way
# is to begin when the first chart is there, and it does not when Plotly is.
_PLOTLY = "/_dash-component-suites/plotly/package_data/plotly.min.js"
_PLOTLY_SCRIPT = f"""
if (location.pathname.startsWith("/run/") || location.pathname === "/compare") {{
  var script = document.createElement("script");
  script.src = "{_PLOTLY}";
  document.head.appendChild(script);
}}
"""

_INDEX = f"""<!DOCTYPE html>
<html lang="en">
<head>
{{%metas%}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{%title%}}</title>
<link rel="icon" href="{_ICON}">
<style>{theme.css()}</style>
<script>{_HEAD_SCRIPT}{_PLOTLY_SCRIPT}</script>
{{%css%}}
</head>
<body>
{{%app_entry%}}
<footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
</body>
</html>"""

_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)


def make_app(shelf: Shelf) -> Dash:
    """The dashboard over the runs of a shelf; `app.server` is its WSGI application."""
    server = Flask(__name__)
    server.after_request(_finish)
    app = Dash(
        "lldscope",
        server=cast(bool, server),  # a Flask app is meant; Dash declares it too narrowly
        title="lldscope",
        update_title=cast(str, None),
        assets_folder=str(Path(__file__).parent / "assets"),
        suppress_callback_exceptions=True,
        index_string=_INDEX,
        serve_locally=True,
    )
    app.layout = html.Div(
        [
            dcc.Location(id="url"),
            dcc.Store(id="again"),
            html.Nav(
                [
                    html.A([html.Span("lld", className="mark"), "scope"], href="/", id="brand"),
                    html.A("Runs", href="/"),
                    html.A("Alarm rules", href="/rules"),
                    html.Button("Keys", id="help", className="button plain", title="keyboard: ?"),
                    html.Button("Light / dark", id="theme", className="button plain"),
                ]
            ),
            html.Main(id="page"),
        ]
    )
    live.register(app, shelf)
    return app


def _finish(response: Response) -> Response:
    """Policy headers on every answer, and compression, which a forwarded port needs."""
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    # Pages of other origins may neither embed an answer nor keep a handle on our window.
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    plain = response.status_code == 200 and "Content-Encoding" not in response.headers
    if plain and "gzip" in request.headers.get("Accept-Encoding", ""):
        kind = response.mimetype
        if kind in ("application/json", "application/javascript", "text/javascript", "text/css"):
            response.direct_passthrough = False
            body = response.get_data()
            if len(body) > 1500:
                pack = _pack if kind == "application/json" else _pack_file
                response.set_data(pack(body))
                response.headers["Content-Encoding"] = "gzip"
                response.headers["Vary"] = "Accept-Encoding"
    return response


def _pack(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=3)


@lru_cache(maxsize=64)  # scripts do not change while the server runs
def _pack_file(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=6)
