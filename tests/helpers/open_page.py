"""A page of the dashboard as a browser holds it, and its questions, without a browser."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lldscope_dashboard.app import make_app
from lldscope_dashboard.data.run_registry import RunRegistry
from lldscope_dashboard.pages.router import page
from page_content import walk

CALLBACKS = "/_dash-update-component"


class Open:
    """An open page: what the browser holds of it, and its questions."""

    def __init__(self, root: Path, address: str) -> None:
        self.app = make_app(runs := RunRegistry(root))
        url = urlsplit(address)
        parts = [*walk(self.app.layout()), *walk(page(runs, url.path, url.query))]
        self.parts = {key(c.id): c for c in parts if getattr(c, "id", None) is not None}
        self.address = {"pathname": url.path, "search": url.query and f"?{url.query}"}

    def __getitem__(self, part: str) -> Any:
        """The data of a store, or the value of a control."""
        item = self.parts[part]
        return item.value if hasattr(item, "value") else item.data

    def question(self, call: dict[str, Any], *changed: str) -> dict[str, Any]:
        """What a callback is asked. KeyError if the page has not all of its parts."""
        targets = [o.rsplit(".", 1) for o in call["output"].strip(".").split("...")]
        outputs = [_without_value(self._find(*one)) for one in targets]
        return {
            "output": call["output"],
            "outputs": outputs if len(outputs) > 1 else outputs[0],
            "inputs": [self._find(i["id"], i["property"]) for i in call["inputs"]],
            "state": [self._find(i["id"], i["property"]) for i in call["state"]],
            "changedPropIds": [f"{part}.{self._prop(part)}" for part in changed],
        }

    def ask(self, output: str, **changed: Any) -> dict[str, Any]:
        """Change inputs, have the callback with this output called: id → what it answers."""
        for part, value in changed.items():
            setattr(self.parts[part], self._prop(part), value)
        call = next(c for c in self.app._callback_list if output in c["output"])
        answer = self.app.server.test_client().post(
            CALLBACKS, json=self.question(call, *changed), headers={"Accept-Encoding": "gzip"}
        )
        if answer.status_code == 204:
            return {}
        assert answer.status_code == 200, answer.text
        data = answer.get_data()
        content = json.loads(gzip.decompress(data) if answer.content_encoding == "gzip" else data)
        values = {k: next(iter(v.values())) for k, v in content["response"].items()}
        if "seen" in values:
            self.parts["seen"].data = values["seen"]
        return values

    def _prop(self, part: str) -> str:
        return "value" if hasattr(self.parts[part], "value") else "data"

    def _find(self, one: str, prop: str) -> Any:
        """The part, or, of a pattern, all that there are, as the browser tells of them."""
        if "ALL" not in one:
            part = self.parts[one]
            value = getattr(part, prop, None) if prop in ("value", "data") else None
            value = self.address[prop] if one == "url" and prop in self.address else value
            return {"id": one, "property": prop, "value": value}
        kind = json.loads(one)["type"]
        parts = [p for k, p in self.parts.items() if k[0] == "{" and json.loads(k)["type"] == kind]
        props = ("value", "data", "id")  # what callbacks are told of; outputs need no more
        return [
            {"id": p.id, "property": prop, "value": getattr(p, prop) if prop in props else None}
            for p in parts
        ]


def _without_value(part: Any) -> Any:
    if isinstance(part, list):
        return [*map(_without_value, part)]
    return {name: part[name] for name in ("id", "property")}


def key(one: Any) -> str:
    return one if isinstance(one, str) else json.dumps(one, sort_keys=True, separators=(",", ":"))
