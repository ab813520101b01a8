"""An alarm in the forms that others read: Alertmanager's webhook JSON, and two lines of text.

The JSON is version 4 of what Prometheus Alertmanager posts to a `webhook_config` receiver (its
docs/configuration.md), so that receivers made for it work. An alarm is a group of its own: its
`status` is that of the group, and a receiver that closes a group when it is resolved closes no
other alarm with it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from ..core.terminal import plain

NOT_ENDED = "0001-01-01T00:00:00Z"  # what Alertmanager gives as `endsAt` of a firing alert


def event(state: dict[str, Any], alert: dict[str, Any], now: float) -> dict[str, Any]:
    """What `watch --json` prints and `--on-alert` reads: a changed alarm, and the run around it."""
    context = ("schema", "run", "id", "path", "verdict", "phase", "last_step")
    told = {"type": "alert", "time": now, **{key: state[key] for key in context}}
    return {**told, "grade": state["evidence"], **alert}


def payload(told: dict[str, Any]) -> dict[str, Any]:
    """Alertmanager's webhook JSON for an event. All labels and annotations are strings."""
    # Only what stays the same when `watch` is started again, on another machine too: receivers
    # know an alarm by its labels.
    group = {"alertname": told["rule"], "run": plain(told["run"]), "run_id": str(told["id"])}
    labels = {**group, "severity": told["severity"], "path": plain(told["path"])}
    title, body = as_text(told)
    annotations = {
        "summary": title,
        "description": body,
        "advice": plain(told["advice"]),
        "step": str(told["episodes"][-1][0]),
        "value": str(told["value"]),
        "threshold": str(told["threshold"]),
        "grade": told["grade"],
        "phase": str(told["phase"]),
        "false_alarms": plain(told["false_alarms"]),
    }
    # "None" is no number: an annotation that has nothing to say is left out.
    annotations = {k: v for k, v in annotations.items() if v != "None"}
    matchers = ", ".join(f'{k}="{_escaped(v)}"' for k, v in sorted(group.items()))
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{matchers}}}",
        "truncatedAlerts": 0,
        "status": told["state"],
        "receiver": "lldscope",
        "groupLabels": group,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "alerts": [
            {
                "status": told["state"],
                "labels": labels,
                "annotations": annotations,
                "startsAt": _rfc3339(told["started"]),
                "endsAt": NOT_ENDED if told["ended"] is None else _rfc3339(told["ended"]),
                "generatorURL": "",
                "fingerprint": fingerprint(labels),
            }
        ],
    }


def fingerprint(labels: dict[str, str]) -> str:
    """16 hexadecimal digits that the same set of labels always gives: the alarm's identity."""
    text = "\0".join(f"{k}\0{v}" for k, v in sorted(labels.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def as_text(told: dict[str, Any]) -> tuple[str, str]:
    """Title and body for people; numbers and what to do are in the text."""
    fired, resolved = told["episodes"][-1]
    what = f"{told['rule']} in run {plain(told['run'])}"
    if told["state"] == "resolved":
        return (
            f"resolved: {what}",
            f"It fired at step {fired} and is resolved at step {resolved}; "
            f"the run is {told['verdict']}.",
        )
    return (
        f"{told['severity']}: {what}",
        f"Step {fired}: {plain(told['message']).rstrip('.')}.\n{plain(told['advice'])}",
    )


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
