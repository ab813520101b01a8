"""Addresses of runs on S3-compatible storage, or any other file system of fsspec.

An address may hold secrets: messages show `str(url)`, which leaves them out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ..core.errors import LldscopeError, RunNotFound

_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {
        "connect_timeout": 5, "read_timeout": 20, "retries": {"total_max_attempts": 2},
    }},
    "file": {"auto_mkdir": True},
}
# Part of the name of an exception → its reason. The texts of exceptions may hold secrets.
_REASONS = {
    "Uri": "the address is malformed", "Connect": "its server cannot be reached",
    "Timeout": "its server does not answer", "Credentials": "there are no credentials",
    "NotFound": "it does not exist, or is private",
}
_ADVICE = {
    "s3": "Write s3://BUCKET/PATH; credentials come from the AWS_… variables or ~/.aws.",
    "hf": "Write hf://datasets/OWNER/NAME; private ones need HF_TOKEN or `hf auth login`.",
}


@dataclass(frozen=True)
class Url:
    """An address that fsspec knows; as text it shows neither user, password nor query."""

    address: str

    def __str__(self) -> str:
        protocol, _, rest = self.address.rpartition("://")
        host, slash, path = rest.partition("/")
        host = host.rpartition("@")[2].partition("?")[0]
        return f"{protocol}://{host}{slash}{path.partition('?')[0]}".rstrip("/")

    __repr__ = __str__

    @cached_property
    def _place(self) -> tuple[Any, str]:
        with plain_errors(self):
            from fsspec.core import url_to_fs

            options = _OPTIONS.get(self.address.partition("://")[0], {})
            filesystem, path = url_to_fs(self.address, use_listings_cache=False, **options)
        return filesystem, path.rstrip("/")

    @property
    def filesystem(self) -> Any:
        return self._place[0]

    @property
    def path(self) -> str:
        """The place inside its file system."""
        return self._place[1]

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(str(self)).path).name or str(self)

    def at(self, path: str) -> Url:
        """Another place of the same file system, below this one."""
        inside = path.removeprefix(self.path).lstrip("/")
        bare, query, rest = self.address.partition("?")
        return Url(f"{bare.rstrip('/')}/{inside}{query}{rest}" if inside else self.address)

    def relative_to(self, root: Url) -> PurePosixPath:
        return PurePosixPath(self.path).relative_to(root.path)

    def resolve(self) -> Url:
        return self

    def is_dir(self) -> bool:
        with plain_errors(self):
            return bool(self.filesystem.isdir(self.path))


def place_of(path: str | os.PathLike[str] | Url) -> Path | Url:
    """An address as a `Url`, anything else as a path of this machine."""
    if isinstance(path, Url):
        return path
    return Url(path) if isinstance(path, str) and "://" in path else Path(path)


@contextmanager
def plain_errors(url: Url, what: str = "read") -> Iterator[None]:
    """Turn any error of a file system into one sentence without the error's own text, which may
    hold an address with secrets. `what` could not be done: read, written."""
    try:
        yield
    except LldscopeError:
        raise
    except FileNotFoundError:
        raise RunNotFound(f"There is nothing at {url}.") from None
    except ImportError as error:
        module = error.name or "what its protocol needs"
        raise LldscopeError(
            f"Reading {url} needs {module}: pip install 'lldscope[remote]', or the package of that "
            "protocol."
        ) from None
    except Exception as error:  # each file system has errors of its own
        code = getattr(error, "errno", None)
        name = type(error).__name__
        why = os.strerror(code) if isinstance(code, int) else next(
            (words for part, words in _REASONS.items() if part in name), name
        )
        advice = _ADVICE.get(url.address.partition("://")[0], "Check the address and credentials.")
        raise LldscopeError(f"{url} cannot be {what}: {why}. {advice}") from None
