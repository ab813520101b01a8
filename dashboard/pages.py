"""From an address to a page."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote

from .compare_page import compare_page
from .frame import words_page
from .list_page import list_page
from .run_page import run_page
from .shelf import Shelf


def _name(path: str) -> str:
    return unquote(path.removeprefix("/run/"), errors="surrogateescape").rstrip("/")


def page(shelf: Shelf, path: str, search: str) -> Any:
    """The content for an address."""
    query = parse_qs((search or "").lstrip("?"))
    if path == "/compare":
        return compare_page(shelf, query)
    if path.startswith("/run/"):
        return run_page(shelf, _name(path), query)
    if path == "/":
        return list_page(shelf)
    return words_page("There is no such page", f"Nothing lives at {path}.")
