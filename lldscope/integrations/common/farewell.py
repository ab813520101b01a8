"""What a training says of its run when it has ended."""

from __future__ import annotations

import logging
import sys
from typing import Any

from ...core.safe_text import in_one_line
from ...monitor.health import check
from ...runs import open_run

log = logging.getLogger("lldscope")


def farewell(place: Any) -> None:
    """One line on stdout: what was seen, and where to look. In a notebook the run draws itself.
    An error here is logged and goes no further."""
    try:
        with open_run(place) as run:
            state = check(run)
            steps = len(run.assess().phases)
            word, cause = state.sign.word, in_one_line(state.headline.cause)
            verdict = "" if cause.lower().startswith(word) else f", {word}"
            print(f"lldscope: {steps} steps in {place}{verdict}. {cause}. "
                  f"Look: lldscope dash {place}")
            if _in_notebook():
                from IPython.display import display

                display(run)  # the first screen of its report
    except Exception as error:
        log.warning("lldscope: nothing can be said of the run at %s: %s", place, error)


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"
