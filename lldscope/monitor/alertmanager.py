"""An alarm in the forms that others read: Alertmanager's webhook JSON, and two lines of text.

The JSON is version 4 of what Prometheus Alertmanager posts to a `webhook_config` receiver (its
docs/configuration.md), so that receivers made for it work. An alarm is a group of its own: its
`status` is that of the group, and a receiver that closes a group when it is resolved closes no
other alarm with it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..core.palette import VERDICTS
from ..core.terminal import plain
from ..diagnosis.registry import STALLED

if TYPE_CHECKING:
    from .follow import AlertEvent

NOT_ENDED = "0001-01-01T00:00:00Z"  # what Alertmanager gives as `endsAt` of a firing alert


def payload(event: AlertEvent) -> dict[str, Any]:
    """Alertmanager's webhook JSON for an event. All labels and annotations are strings."""
    alert, state = event.alert, event.state
    # Only what stays the same when `watch` is started again, on another machine too: receivers
    # know an alarm by its labels.
    group = {"alertname": alert.rule, "run": plain(state.run), "run_id": str(state.id)}
    labels = {**group, "severity": alert.severity, "path": plain(state.path)}
    title, body = as_text(event)
    annotations = {
        "summary": title,
        "description": body,
        "advice": plain(alert.advice),
        "step": str(alert.episodes[-1][0]),
        "value": str(alert.value),
        "threshold": str(alert.threshold),
        "grade": state.evidence,
        "phase": str(state.phase),
        "false_alarms": plain(alert.false_alarms),
    }
    # "None" is no number: an annotation that has nothing to say is left out.
    annotations = {k: v for k, v in annotations.items() if v != "None"}
    matchers = ", ".join(f'{k}="{_escaped(v)}"' for k, v in sorted(group.items()))
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{matchers}}}",
        "truncatedAlerts": 0,
        "status": alert.state,
        "receiver": "lldscope",
        "groupLabels": group,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": event.link or "",
        "alerts": [
            {
                "status": alert.state,
                "labels": labels,
                "annotations": annotations,
                "startsAt": _rfc3339(event.started),
                "endsAt": NOT_ENDED if event.ended is None else _rfc3339(event.ended),
                "generatorURL": event.link or "",
                "fingerprint": fingerprint(labels),
            }
        ],
    }


def fingerprint(labels: dict[str, str]) -> str:
    """16 hexadecimal digits that the same set of labels always gives: the alarm's identity."""
    text = "\0".join(f"{k}\0{v}" for k, v in sorted(labels.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def as_text(event: AlertEvent) -> tuple[str, str]:
    """Title and body for people; numbers and what to do are in the text."""
    alert = event.alert
    fired, resolved = alert.episodes[-1]
    what = f"{alert.rule} in run {plain(event.state.run)}"
    link = f"\n{event.link}" if event.link else ""
    if alert.state == "resolved" and alert.rule == STALLED.id and not event.state.over:
        return (
            f"resumed: run {plain(event.state.run)}",
            f"It stopped at step {fired} and goes on; the verdict is: "
            f"{VERDICTS[event.state.verdict].word}.{link}",
        )
    if alert.state == "resolved":
        return (
            f"resolved: {what}",
            f"It fired at step {fired} and is resolved at step {resolved}; "
            f"the verdict is: {VERDICTS[event.state.verdict].word}.{link}",
        )
    return (
        f"{alert.severity}: {what}",
        f"Step {fired}: {plain(alert.message).rstrip('.')}.\n{plain(alert.advice)}{link}",
    )


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
