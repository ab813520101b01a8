"""What is installed on this machine: versions, extras, and what else a command may need."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

from ..core.version import __version__
from .findings import Finding

LOW_DISK = 1 << 30  # bytes

# Purpose of each extra; the others serve development.
EXTRAS = {
    "dash": "the dashboard",
    "train": "the trainer and `lldscope demo`",
    "notify": "alarms by Slack, e-mail and the like",
    "remote": "runs on S3 and other remote storage",
    "lora": "training with LoRA",
    "deepspeed": "training with DeepSpeed",
}


def inspect() -> tuple[dict[str, str], list[Finding]]:
    """Versions of the packages that lldscope needs, and findings about packages, programs, disk."""
    requirements = _requirements()
    installed = {name: _version(name) for names in requirements.values() for name in names}
    versions = {"lldscope": __version__, "python": platform.python_version()}
    findings = []
    for name in requirements.get("", []):
        if found := installed[name]:
            versions[name] = found
        else:
            message = "lldscope needs it and it is not installed."
            findings.append(Finding("damage", "package", name, message))
    for extra, purpose in EXTRAS.items():
        missing = [name for name in requirements.get(extra, []) if not installed[name]]
        if missing:
            message = f"not installed ({', '.join(missing)}); for {purpose}: "
            message += f"pip install 'lldscope[{extra}]'"
            findings.append(Finding("note", "extra", extra, message))
    if not any(shutil.which(name) for name in ("chromium", "google-chrome", "chrome")):
        message = "not found; only the browser tests need it."
        findings.append(Finding("note", "program", "chromium", message))
    return versions, findings + check_disk(Path.cwd())


def check_disk(path: Path) -> list[Finding]:
    """A warning if the file system of a path is almost full."""
    free = shutil.disk_usage(path).free
    if free >= LOW_DISK:
        return []
    message = f"{free >> 20} MiB are left on its file system."
    return [Finding("warning", "disk", os.fspath(path), message)]


def _requirements() -> dict[str, list[str]]:
    """Extra → names of the packages it needs; "" stands for what is always needed."""
    requirements: dict[str, list[str]] = {}
    for line in metadata("lldscope").get_all("Requires-Dist") or ():
        name = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and name[0] != "lldscope":
            requirements.setdefault(extra[1] if extra else "", []).append(name[0])
    return requirements


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
