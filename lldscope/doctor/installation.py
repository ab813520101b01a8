"""What is installed here: versions, extras, and what else a command may need."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

from ..core.version import __version__

LOW_DISK = 1 << 30  # bytes

# What an extra is for; the others serve development.
EXTRAS = {
    "dash": "the dashboard",
    "train": "the trainer and `lldscope demo`",
    "notify": "alarms by Slack, e-mail and the like",
    "remote": "runs on S3 and other remote storage",
    "lora": "training with LoRA",
    "deepspeed": "training with DeepSpeed",
}


@dataclass
class Installation:
    """Versions of what lldscope needs, by name, and what there is to say about them."""

    versions: dict[str, str] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def worst(self) -> str | None:
        severities = {f["severity"] for f in self.findings}
        return next((s for s in ("damage", "warning", "note") if s in severities), None)

    def add(self, severity: str, what: str, where: str, message: str) -> None:
        found = {"severity": severity, "what": what, "where": where, "message": message}
        self.findings.append({**found, "repair": None, "repaired": False})


def inspect() -> Installation:
    """Look at the packages, the programs and the disk that lldscope finds here."""
    result = Installation({"lldscope": __version__, "python": platform.python_version()})
    needed = _requirements()
    for name in needed.get("", []):
        try:
            result.versions[name] = version(name)
        except PackageNotFoundError:
            result.add("damage", "package", name, "lldscope needs it and it is not installed.")
    for extra, purpose in EXTRAS.items():
        missing = [name for name in needed.get(extra, []) if not _installed(name)]
        if missing and extra in needed:
            words = f"not installed ({', '.join(missing)}); for {purpose}: "
            result.add("note", "extra", extra, f"{words}pip install 'lldscope[{extra}]'")
    if not any(shutil.which(name) for name in ("chromium", "google-chrome", "chrome")):
        result.add("note", "program", "chromium", "not found; only the browser tests need it.")
    free = shutil.disk_usage(Path.cwd()).free
    if free < LOW_DISK:
        result.add("warning", "disk", os.getcwd(), f"{free >> 20} MiB are left on its file system.")
    return result


def _requirements() -> dict[str, list[str]]:
    """Extra → names of the packages it needs; "" is what everybody needs."""
    found: dict[str, list[str]] = {}
    for line in metadata("lldscope").get_all("Requires-Dist") or ():
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and name[0] != "lldscope":
            found.setdefault(extra[1] if extra else "", []).append(name[0])
    return found


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
