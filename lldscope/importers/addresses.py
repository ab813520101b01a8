"""Logs at an address: of a tracker, on a web server, or in a file system of fsspec.

    wandb://ENTITY/PROJECT/RUN                  W&B's server
    mlflow://[HOST:PORT/]EXPERIMENT[/RUN]       MLflow's server, or its database here
    trackio://PROJECT[/RUN]                     Trackio's database here
    https://host/file                           a file
    hf://datasets/OWNER/NAME, s3://bucket/logs  a file, or a folder of them

What is elsewhere is fetched into a folder and read from there, as untrusted as any other file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from ..core.errors import LldscopeError, UsageError
from ..storage.file_system import replacing
from ..storage.url import Url, plain_errors
from .reading import choose_run
from .sqlite import open_copy

WANDB, MLFLOW, TRACKIO = "wandb://", "mlflow://", "trackio://"
SUFFIX = ".wandb-history.jsonl"
SECONDS = 60  # without an answer
MAX_BYTES = 1 << 30  # of a file, or of all files of an address
_MOST_FILES = 10_000
_NAME = re.compile(r"[\w.~ -]{1,128}")
_PAGE = re.compile(r"https://wandb\.ai/([^/?#]+)/([^/?#]+)/runs/([^/?#]+)/?(?:[?#].*)?")
_BLOB = re.compile(r"(https://(?:github\.com|huggingface\.co)/(?:datasets/)?[^/]+/[^/]+)/blob/")


def is_address(source: str) -> bool:
    """Whether a source is a URL rather than a path."""
    return "://" in source


def is_fetched(source: str) -> bool:
    """Whether it is a URL that cannot hold a recorded run."""
    return source.startswith((WANDB, MLFLOW, TRACKIO, "http://", "https://"))


def located(source: str, folder: Path, run: str | None) -> tuple[Path, str | None]:
    """The local path of a URL, fetched into a folder if necessary; and the requested run, from
    `run` or from the URL. Pages of a run at W&B, and of a file at GitHub and Hugging Face, stand
    for that run or file. Raises UsageError if the URL is invalid, LldscopeError if it cannot be
    fetched."""
    if page := _PAGE.fullmatch(source):
        source = WANDB + "/".join(page.groups())
    if source.startswith(TRACKIO):
        return _trackio(source, run)
    if source.startswith(MLFLOW):
        return _mlflow(source, folder, run)
    if source.startswith(WANDB):
        return _history(source, folder), run
    if source.startswith(("http://", "https://")):
        return _download(source, folder), run
    return _copy(Url(source), folder), run


def _names(source: str, scheme: str, counts: tuple[int, ...], form: str) -> list[str]:
    """The parts of a URL. Raises UsageError with the expected form."""
    names = source.removeprefix(scheme).rstrip("/").split("/")
    if len(names) not in counts or not all(map(_NAME.fullmatch, names)) or {*names} & {".", ".."}:
        raise UsageError(f"{source}: write {scheme}{form}.")
    return names


def _history(source: str, folder: Path) -> Path:
    """Fetch every row of a run's history from W&B, with the package `wandb`. It reads the key from
    WANDB_API_KEY or `wandb login`, and the server from WANDB_BASE_URL."""
    names = _names(source, WANDB, (3,), "ENTITY/PROJECT/RUN, the run by its id")
    try:
        import wandb
    except ImportError:
        raise LldscopeError(
            f"{WANDB} addresses need the package wandb: pip install 'lldscope[import]'"
        ) from None

    path = folder.joinpath(*names[:2], names[2] + SUFFIX)
    try:
        with replacing(path) as new, new.open("w", encoding="utf-8", errors="replace") as file:
            run = wandb.Api(timeout=SECONDS).run("/".join(names))
            for row in run.scan_history():
                file.write(json.dumps(row, default=str) + "\n")
        return path
    except (wandb.Error, ValueError, OSError) as error:
        raise LldscopeError(f"{'/'.join(names)} cannot be read from W&B: {error}") from None


def _download(address: str, folder: Path) -> Path:
    """Download a file from a web server; redirects to other protocols are refused."""
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler

    parts = urlsplit(_BLOB.sub(r"\1/resolve/" if "huggingface" in address else r"\1/raw/", address))
    name = Path(unquote(parts.path)).name
    if not parts.hostname or not _NAME.fullmatch(name) or name.startswith("."):
        raise UsageError(f"{address}: name a file, such as https://host/run/trainer_state.json.")

    path, size = folder / _key(address) / name, 0
    try:
        with (
            replacing(path) as new, new.open("wb") as file,
            _web(HTTPRedirectHandler).open(parts.geturl(), timeout=SECONDS) as answer,
        ):
            while block := answer.read(1 << 20):
                size += file.write(block)
                if size > MAX_BYTES:
                    raise LldscopeError(
                        f"{address} is larger than {MAX_BYTES >> 20:,} MB: download it yourself."
                    )
            if answer.length:
                raise OSError("the answer was cut")
        return path
    except (OSError, ValueError, HTTPException) as error:
        raise LldscopeError(f"{address} cannot be fetched: {error}") from None


def _web(*more: Any) -> Any:
    """An opener for web servers only; it follows redirects if given the handler for them."""
    from urllib import request

    opener = request.OpenerDirector()  # without file:, ftp: and data:
    for handler in (
        request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.UnknownHandler,
        request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor, *more,
    ):
        opener.add_handler(handler())
    return opener


def _key(address: str) -> str:
    return hashlib.blake2b(address.encode(errors="replace"), digest_size=8).hexdigest()


def _copy(url: Url, folder: Path) -> Path:
    """Copy a file, or the files below a folder, from a file system of fsspec. Raises RunNotFound if
    there are none."""
    with plain_errors(url):
        url.filesystem.invalidate_cache()
        files = url.filesystem.find(url.path, detail=True)
        if not files:
            raise FileNotFoundError
        size = sum(info.get("size") or 0 for info in files.values())
        if size > MAX_BYTES or len(files) > _MOST_FILES:
            raise LldscopeError(
                f"{url} holds {len(files):,} files of {size >> 20:,} MB, more than {_MOST_FILES:,} "
                f"or {MAX_BYTES >> 20:,} MB: name the file of the run, or its folder."
            )
        place = folder / _key(url.address) / (url.name if _NAME.fullmatch(url.name) else "log")
        with replacing(place) as new:
            for path in files:
                name = PurePosixPath(path.removeprefix(url.path).lstrip("/"))
                if name.is_absolute() or ".." in name.parts:
                    raise LldscopeError(f"{url} holds a file outside of it: {name}.")
                target = new / name
                target.parent.mkdir(parents=True, exist_ok=True)
                url.filesystem.get_file(path, str(target))
    return place


def _trackio(source: str, run: str | None) -> tuple[Path, str | None]:
    """Trackio's database of a project, at the place that the package uses."""
    project, *names = _names(source, TRACKIO, (1, 2), "PROJECT or PROJECT/RUN")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(cache, "huggingface")
    file = "".join(c for c in project if c.isalnum() or c in "-_") or "default"
    place = Path(os.environ.get("TRACKIO_DIR") or Path(home, "trackio")).expanduser()
    path = place / f"{file}.db"
    if not path.is_file():
        has = ", ".join(sorted(p.stem for p in place.glob("*.db"))[:8]) or "none"
        raise LldscopeError(
            f"There is no project {project} in {place} (TRACKIO_DIR), which has: {has}."
        )
    return path, names[0] if names else run


def _mlflow(source: str, folder: Path, run: str | None) -> tuple[Path, str | None]:
    """MLflow's database if MLFLOW_TRACKING_URI names one; for a run on a server, a new database of
    the same form."""
    rest, server = source.removeprefix(MLFLOW), os.environ.get("MLFLOW_TRACKING_URI", "")
    if re.match(r"[\w.-]+:\d+/", rest):
        host, _, rest = rest.partition("/")
        server = f"http://{host}"
    form = "EXPERIMENT, EXPERIMENT/RUN or HOST:PORT/EXPERIMENT/RUN"
    experiment, *names = _names(MLFLOW + rest, MLFLOW, (1, 2), form)
    run = names[0] if names else run
    where = f"The experiment {experiment}"
    if server.startswith(("http://", "https://")):
        return _Server(server).database(experiment, run, where, folder / _key(server))
    path = Path(server.removeprefix("sqlite:///") or "mlflow.db")
    if not path.is_file():
        raise LldscopeError(
            f"{Url(str(path))} is not a database. Set MLFLOW_TRACKING_URI to the URL of MLflow's "
            "server or to sqlite:///FILE; `mlflow migrate-filestore` converts a folder mlruns."
        )
    query = (
        "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' AND experiment_id IN "
        "(SELECT experiment_id FROM experiments WHERE name = ?)"
    )
    try:
        with open_copy(path) as connection:
            runs = {i: name or i for i, name in connection.execute(query, (experiment,))}
    except sqlite3.Error as error:
        raise LldscopeError(f"{path} is not a database of MLflow: {error}.") from None
    return path, _of_experiment(run, runs, where)


def _of_experiment(run: str | None, runs: dict[str, str], where: str) -> str:
    if (run_id := choose_run(run, runs, where) if runs else None) is None:
        raise LldscopeError(f"{where} does not exist, or holds no runs.")
    return run_id


def _bounded(number: Any) -> int:
    """A whole number within SQLite's range."""
    return max(-1, min(int(number), 1 << 62))


class _Server:
    """MLflow's REST interface. Only the server in MLFLOW_TRACKING_URI receives the credentials of
    MLflow's client: MLFLOW_TRACKING_TOKEN, or …_USERNAME and …_PASSWORD."""

    def __init__(self, address: str) -> None:
        from base64 import b64encode

        self._address, self._read = address.rstrip("/"), 0
        self._headers = {"Content-Type": "application/json"}
        names = ("URI", "TOKEN", "USERNAME", "PASSWORD")
        uri, token, user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in names)
        if user and password:
            token = b64encode(f"{user}:{password}".encode()).decode()
        if token and uri == address:
            self._headers["Authorization"] = f"{'Basic' if user and password else 'Bearer'} {token}"

    def database(
        self, experiment: str, run: str | None, where: str, folder: Path
    ) -> tuple[Path, str]:
        """Store the metrics of a run in a file."""
        from http.client import HTTPException

        try:
            run_id, name, points = self._run(experiment, run, where)
        except (
            OSError, ValueError, HTTPException, KeyError, TypeError, AttributeError, OverflowError
        ) as error:
            why = f"MLflow at {Url(self._address)} did not give the run: {error or type(error)}"
            raise LldscopeError(why) from None

        file = next(n for n in (name, _key(run_id)) if _NAME.fullmatch(n) and n[0] != ".")
        path = folder / f"{file}.db"
        with replacing(path) as new, closing(sqlite3.connect(new)) as db:
            db.execute("CREATE TABLE runs (run_uuid, name, lifecycle_stage)")
            db.execute("CREATE TABLE metrics (key, value REAL, timestamp, step, is_nan, run_uuid)")
            db.execute("INSERT INTO runs VALUES (?, ?, 'active')", (run_id, name))
            db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", points)
            db.commit()
        return path, run_id

    def _run(
        self, experiment: str, run: str | None, where: str
    ) -> tuple[str, str, list[tuple[Any, ...]]]:
        """Id and name of a run, and the rows of its metrics in logging order."""
        body = {"filter": f"name = '{experiment}'", "max_results": 1}  # _NAME has no quotes
        ids = [str(e["experiment_id"]) for e in self._pages("experiments", body)]
        body = {"experiment_ids": ids, "max_results": 1000}
        infos = {r["info"]["run_id"]: r for r in self._pages("runs", body)} if ids else {}
        names = {str(i): str(r["info"].get("run_name") or i) for i, r in infos.items()}
        run_id = _of_experiment(run, names, where)
        keys = [m["key"] for m in infos[run_id]["data"].get("metrics", ())]
        points = [
            (str(key), 0.0 if p["value"] == "NaN" else float(p["value"]),  # NaN is NULL to SQLite
             *(_bounded(p[name]) for name in ("timestamp", "step")), p["value"] == "NaN", run_id)
            for key in keys
            for p in self._pages(
                "metrics", {"run_id": run_id, "metric_key": key, "max_results": 25_000},
                "metrics/get-history",
            )
        ]
        return run_id, names[run_id], sorted(points, key=lambda point: point[2])

    def _pages(
        self, what: str, question: dict[str, Any], path: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The items of all pages of an answer: of a search, or of a path."""
        from urllib.request import Request

        page: str | None = None
        while page != "":
            query = question | ({"page_token": page} if page else {})
            address = f"{self._address}/api/2.0/mlflow/{path or what + '/search'}"
            body = None if path else json.dumps(query).encode()
            if path:
                address += f"?{urlencode(query, quote_via=quote)}"
            request = Request(address, body, self._headers)
            with _web().open(request, timeout=SECONDS) as reply:
                content = reply.read(MAX_BYTES)
            self._read += len(content)
            if self._read >= MAX_BYTES:
                raise LldscopeError(f"The run is larger than {MAX_BYTES >> 20:,} MB.")
            answer = json.loads(content)
            yield from answer.get(what, ())
            page = str(answer.get("next_page_token") or "")
