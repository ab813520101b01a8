"""The post-mortem of a run: what happened, why, what to change, and what the log cannot tell.

From a run to its report:

analysis      a run → `facts.PostMortem`; its parts: onset_order, losses, examples, series, advice
sentences     the summary and the limits, in sentences
document      facts → blocks (`blocks`), section by section
charts        pictures as inline SVG, with timeline and drawing
html          blocks → one file that opens from disk and loads nothing; markdown: for reviews
arms          two runs, or two groups of runs, side by side, in the same way
"""

from __future__ import annotations

from .analysis import REPORT_SCHEMA, post_mortem
from .facts import PostMortem

__all__ = ["REPORT_SCHEMA", "PostMortem", "post_mortem"]
