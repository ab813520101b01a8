"""Objects on a store, by name below one address: put, read, listed, deleted.

A request that is not answered within a few seconds is sent again beside the first one, and the
first answer counts: a store that answers late, or carries out a request twice, does no harm where
objects never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from .url import Url, plain_errors

PATIENCE_SECONDS = 3.0  # before a request is sent again
BYTES_PER_SECOND = 2_000_000  # that a slow line carries at least; more patience for a large object
ATTEMPTS = 4  # of a request at the same time
GIVE_UP = 20  # after so many times the patience, the request has failed
AT_ONCE = 16  # objects

_OPTIONS: dict[str, dict[str, Any]] = {
    # Retries are ours: botocore's own wait longer than a reader of a live run wants to.
    "s3": {"config_kwargs": {
        "max_pool_connections": ATTEMPTS * AT_ONCE, "connect_timeout": 5,
        "retries": {"total_max_attempts": 1},
    }},
}  # fmt: skip


class ObjectStore:
    """The objects below an address. Every method raises LldscopeError where the store refuses."""

    def __init__(self, url: Url) -> None:
        self.url = url
        with plain_errors(url, "written"):
            from fsspec.core import url_to_fs

            options = _OPTIONS.get(url.address.partition("://")[0], {})
            self._fs, self._path = url_to_fs(url.address, use_listings_cache=False, **options)
            self._path = self._path.rstrip("/")

    def put(self, objects: Mapping[str, bytes]) -> None:
        """Write objects; some of them may be there if it raises."""
        with plain_errors(self.url, "written"):
            self._each(objects.items(), lambda item: self._pipe(*item), lambda item: len(item[1]))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of that name; False if there is.

        The content must be this writer's alone: if an answer was lost, it tells whose object it is.
        """
        with plain_errors(self.url, "written"):
            try:
                self._each([name], lambda n: self._pipe(n, content, mode="create"))
                return True
            except FileExistsError:
                pass
        return self.read([name]).get(name) == content

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """The content of those objects that exist."""

        def one(name: str) -> Any:
            return self._call("cat_file", f"{self._path}/{name}")

        with plain_errors(self.url):
            wanted = [*names]
            results = self._each(wanted, one, missing_ok=True)
            return {n: r for n, r in zip(wanted, results, strict=True) if r is not None}

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, in the order that the store lists them."""
        with plain_errors(self.url):
            self._fs.invalidate_cache()
            (entries,) = self._each(
                [f"{self._path}/{folder}"], lambda p: self._call("ls", p, detail=True),
                missing_ok=True,
            )  # fmt: skip
        return [PurePosixPath(e["name"]).name for e in entries or () if e["type"] == "file"]

    def exists(self, name: str) -> bool:
        with plain_errors(self.url):
            return bool(self._each([f"{self._path}/{name}"], lambda p: self._call("exists", p))[0])

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; one that does not exist is deleted already."""
        with plain_errors(self.url, "written"):
            self._each(names, lambda n: self._call("rm_file", f"{self._path}/{n}"), missing_ok=True)

    def _pipe(self, name: str, content: bytes, **options: Any) -> Any:
        path = f"{self._path}/{name}"
        if not self._fs.async_impl:  # a store has no folders; a local file system has
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        return self._call("pipe_file", path, content, **options)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """A coroutine of an asynchronous file system, the result of another one."""
        name = f"_{method}" if self._fs.async_impl else method
        return getattr(self._fs, name)(*arguments, **options)

    def _each(
        self,
        items: Iterable[Any],
        call: Callable[[Any], Any],
        size: Callable[[Any], int] = lambda item: 0,
        missing_ok: bool = False,
    ) -> list[Any]:
        """The results of a call for each item, many at once; None for what is missing, if that is
        no error."""
        if not self._fs.async_impl:
            return [_or_none(call, item, missing_ok) for item in items]

        async def all_of_them() -> list[Any]:
            free = asyncio.Semaphore(AT_ONCE)

            async def one(item: Any) -> Any:
                async with free:
                    patience = PATIENCE_SECONDS + size(item) / BYTES_PER_SECOND
                    try:
                        return await _insist(lambda: call(item), patience)
                    except FileNotFoundError:
                        if missing_ok:
                            return None
                        raise

            results = await asyncio.gather(*map(one, items), return_exceptions=True)
            for error in (r for r in results if isinstance(r, BaseException)):
                raise error
            return results

        return asyncio.run_coroutine_threadsafe(all_of_them(), self._fs.loop).result()


def _or_none(call: Callable[[Any], Any], item: Any, missing_ok: bool) -> Any:
    try:
        return call(item)
    except FileNotFoundError:
        if missing_ok:
            return None
        raise


async def _insist(request: Callable[[], Awaitable[Any]], patience: float) -> Any:
    """The first answer to a request, which is sent again whenever `patience` seconds have passed.

    Raises what the request raises, or TimeoutError.
    """
    running: list[asyncio.Future[Any]] = []
    try:
        for _ in range(GIVE_UP):
            if (
                len(running) == ATTEMPTS
            ):  # the oldest may still be answered; those after it are lost
                running.pop(1).cancel()
            running.append(asyncio.ensure_future(request()))
            done, _ = await asyncio.wait(
                running, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            for answer in done:
                return answer.result()
        raise TimeoutError
    finally:
        for unanswered in running:
            unanswered.cancel()
