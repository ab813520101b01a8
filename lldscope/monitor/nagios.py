"""One line as a monitoring plug-in prints it: state, text, `|`, performance data.

The form is that of the Monitoring Plugins' guidelines: `'label'=value[UOM]` separated by blanks,
labels without quotes and equals signs, values of digits, point and minus, `U` for undetermined.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..core.schema import signal_names
from ..core.terminal import plain

if TYPE_CHECKING:
    import pandas as pd

    from .health import RunState

WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")  # by exit code

# Signals worth a graph in the monitoring system; the last measured value of each is printed.
_SIGNALS = signal_names("reward", "delta_correct", "correct_logp", "entropy", "grad_norm", "kl")


def line(state: RunState, signals: pd.DataFrame, code: int) -> str:
    """The line for a run's state; its first word says what the exit code says."""
    firing = [alert for alert in state.firing if alert.severity != "info"]
    worst = f": {firing[0].rule}: {firing[0].message}" if firing else ""
    summary = f"{state.verdict}, phase {state.phase or 'not seen'}{worst}"
    data: dict[str, float | None] = {"step": state.last_step, "firing": len(firing)}
    data |= {name: _last(signals, name) for name in _SIGNALS}
    values = [f"{name}={_number(value)}" for name, value in data.items() if value is not None]
    age = state.last_row_age_seconds
    values += [f"age={_number(age)}s"] if age is not None else []
    return f"LLDSCOPE {WORDS[code]} - {_clean(state.run)} {_clean(summary)} | {' '.join(values)}"


def unknown(error: Exception) -> str:
    """The line for a run that cannot be read."""
    return f"LLDSCOPE UNKNOWN - {_clean(str(error))}"


def _clean(text: str) -> str:
    """A bar would begin the performance data, a line end the long output."""
    return plain(text).replace("|", "/")


def _last(signals: pd.DataFrame, name: str) -> float | None:
    known = signals[name].dropna()
    return float(known.iloc[-1]) if len(known) else None


def _number(value: float) -> str:
    """Plain digits: a plug-in's reader need not know exponents."""
    if not math.isfinite(value):
        return "U"
    return f"{value:.6f}".rstrip("0").rstrip(".")
