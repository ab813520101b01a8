"""A stand-in for the Hugging Face hub on this machine: what huggingface_hub 2.4 asks to create a
repository, commit to it, list it and read it. `repositories` holds the files by kind and name."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

_API = re.compile(r"/api/(datasets|spaces)/([^/]+/[^/]+)(?:/([\w-]+)(?:/[^/]+(?:/(.*))?)?)?")
_FILE = re.compile(r"/(datasets|spaces)/([^/]+/[^/]+)/resolve/[^/]+/(.+)")


class Hub(BaseHTTPRequestHandler):
    repositories: ClassVar[dict[tuple[str, str], dict[str, bytes]]] = {}
    created: ClassVar[list[dict[str, Any]]] = []
    token: ClassVar[str] = "hf_of-this-machine"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := _FILE.fullmatch(path):
            content = self._repository(match).get(match[3])
            self._answer(404 if content is None else 200, content or b"", match[3])
        elif match := _API.fullmatch(path):
            self._api(match, b"")
        else:
            self._answer(404, b"{}")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self._json({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            wish = json.loads(body)
            place = f"{wish['type']}s", f"{wish['organization']}/{wish['name']}"
            self.created.append(wish)
            if place in self.repositories:
                self._json({"url": self._url(place), "error": "it exists"}, 409)
            else:
                self.repositories[place] = {".gitattributes": b""}
                self._json({"url": self._url(place)})
        elif self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif match := _API.fullmatch(unquote(urlsplit(self.path).path)):
            self._api(match, body)

    def _api(self, match: re.Match[str], body: bytes) -> None:
        kind, name, action, inside = match.groups()
        files = self.repositories[kind, name]
        if action == "tree":
            self._tree(files, inside or "")
        elif action == "preupload":
            wish = json.loads(body)["files"]
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self._json({"files": [{"path": file["path"], **regular} for file in wish]})
        elif action == "commit":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    files[line["value"]["path"]] = content
                elif line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            place = self._url((kind, name))
            self._json({"commitUrl": f"{place}/commit/{'1' * 40}", "commitOid": "1" * 40})
        else:
            siblings = [{"rfilename": file} for file in files]
            self._json({"id": name, "sha": "1" * 40, "private": True, "tags": [], "downloads": 0,
                        "likes": 0, "siblings": siblings})

    def _tree(self, files: dict[str, bytes], folder: str) -> None:
        entries = _entries(files, folder)
        if not entries:
            self._json({"error": "no such entry"}, 404, "EntryNotFound")
            return
        if "recursive=true" not in self.path.lower():
            depth = folder.count("/") + 1 if folder else 0
            entries = [e for e in entries if e["path"].count("/") == depth]
        self._json(entries)

    def _repository(self, match: re.Match[str]) -> dict[str, bytes]:
        return self.repositories.get((match[1], match[2]), {})

    def _url(self, place: tuple[str, str]) -> str:
        return f"http://{self.headers['Host']}/{'/'.join(place)}"

    def _json(self, answer: Any, status: int = 200, error: str = "") -> None:
        self._answer(status, json.dumps(answer).encode(), error=error)

    def _answer(self, status: int, content: bytes, file: str = "", error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if file:
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "1" * 40)
        else:
            self.send_header("Content-Type", "application/json")
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None: ...


def _entries(files: dict[str, bytes], folder: str) -> list[dict[str, Any]]:
    """Files and folders below a folder, as the hub lists them."""
    below = f"{folder}/" if folder else ""
    inside = {path: content for path, content in files.items() if path.startswith(below)}
    folders = {
        path[:i] for path in inside for i, c in enumerate(path) if c == "/" and i >= len(below)
    }
    oid = {path: hashlib.sha1(content).hexdigest() for path, content in inside.items()}
    return [{"type": "directory", "path": path, "oid": "2" * 40, "size": 0} for path in folders] + [
        {"type": "file", "path": path, "oid": oid[path], "size": len(content)}
        for path, content in inside.items()
    ]


@contextmanager
def hub() -> Iterator[str]:
    """Its address, for HF_ENDPOINT."""
    Hub.repositories.clear()
    Hub.created.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
