"""The post-mortem of a run: what happened, what it cost, what to change, what nobody can know.

facts      everything it says, as plain data (`lldscope report --format json`)
spiral     likelihood, entropy, gradient, reward: which broke, when, in which order
losses     actions, groups, data sources and wrong responses, by questions in SQL
texts      the words of responses that lost, beside a wrong one of their group
advice     what to change, with the evidence beside it
words      sentences
document   what is said and in which order, as `blocks`; sections, loss_sections: of which parts
charts     pictures as SVG, with timeline and drawing
html       one file that opens from disk and loads nothing; markdown is the same for reviews

arms       two runs, or two groups of runs, side by side (`lldscope compare -o FILE.html`), with
           arm_words, arm_sections, arm_charts and settings; the rest is shared
"""

from __future__ import annotations

from .facts import REPORT_SCHEMA, post_mortem

__all__ = ["REPORT_SCHEMA", "post_mortem"]
