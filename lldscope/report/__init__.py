"""The post-mortem of a run: what happened, why, what to change, and what the log cannot tell.

analysis      a run → `facts.PostMortem`; its parts: events, losses, trainers, sentences
document      facts → sections of blocks (`blocks`), with charts
html          sections → one file that opens from disk and loads nothing; markdown: for reviews
comparison    what `lldscope compare` found: another document of the same blocks
"""

from __future__ import annotations

from .analysis import REPORT_SCHEMA, post_mortem
from .facts import PostMortem

__all__ = ["REPORT_SCHEMA", "PostMortem", "post_mortem"]
