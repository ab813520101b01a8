"""What a notebook shows of a run: the first screen of its report."""

from __future__ import annotations

from ..run import Run
from .analysis import post_mortem
from .document import document
from .html import html


def card(run: Run) -> str:
    """The first screen of the run's report, as HTML."""
    return html(document(post_mortem(run)), whole=False)
