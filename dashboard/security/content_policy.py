"""The content policy: what a browser may load and run, so that escaping is not the only wall.

Inline scripts are named by their hashes, and style sheets show a nonce that is new with each page:
text of a run that got into a page as either would do nothing. Dash and Plotly add style sheets by
script, which get the nonce from the script at the head of the page. Attributes `style` stay
allowed, because Plotly draws with them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable


def content_policy(scripts: Iterable[str], nonce: str | None) -> str:
    """The header for a page with these inline scripts and no others; None for what is no page."""
    runs = " ".join(["'self'", *map(_hash, scripts)])
    looks = "'self'" if nonce is None else f"'self' 'nonce-{nonce}'"
    return (
        f"default-src 'self'; script-src {runs}; script-src-attr 'none'; style-src {looks}; "
        "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
        "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
