"""Writes, reads, lists and deletes the objects below one address of a store.

A request that is not answered in time fails, and its sender repeats it. Repeating does no harm
where objects never change: a late answer to the first request writes the same content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from .url import Url, plain_errors


class ObjectStore:
    """The objects below an address. Every method raises LldscopeError where the store refuses."""

    def __init__(self, url: Url) -> None:
        self.url = url

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Write objects; some of them may be there if it raises."""
        with plain_errors(self.url, "written"):
            if objects:
                self.url.filesystem.pipe({self._at(n): content for n, content in objects.items()})

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of that name; False if there is.

        The content must be unique to this writer: if the store's answer is lost, the content tells
        who wrote the object.
        """
        with plain_errors(self.url, "written"), suppress(FileExistsError):
            self.url.filesystem.pipe_file(self._at(name), content, mode="create")
            return True
        return self.read([name]).get(name) == content

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """The content of those objects that exist."""
        paths = {self._at(name): name for name in names}
        if not paths:
            return {}
        with plain_errors(self.url):
            answers = self.url.filesystem.cat(list(paths), on_error="return")
            for answer in answers.values():
                if isinstance(answer, Exception) and not isinstance(answer, FileNotFoundError):
                    raise answer
        return {paths[p]: a for p, a in answers.items() if not isinstance(a, Exception)}

    def listing(self, folder: str) -> dict[str, Any]:
        """Name of each object in a folder → what the store says of it, in the store's order."""
        with plain_errors(self.url):
            self.url.filesystem.invalidate_cache()
            try:
                entries = self.url.filesystem.ls(self._at(folder), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        return {PurePosixPath(e["name"]).name: e for e in entries if e["type"] == "file"}

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; one that does not exist is deleted already."""
        paths = [self._at(name) for name in names]
        with plain_errors(self.url, "written"):
            try:
                if paths:
                    self.url.filesystem.rm(paths)
            except FileNotFoundError:
                for path in paths:
                    with suppress(FileNotFoundError):
                        self.url.filesystem.rm_file(path)

    def _at(self, name: str) -> str:
        return f"{self.url.path}/{name}".rstrip("/")
