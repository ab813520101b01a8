"""What the first answer to an address holds, and the plotly.js of pages with charts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import lldscope_dashboard
import plotly
from lldscope_dashboard.app import PLOTLY, make_app
from lldscope_dashboard.data.run_registry import RunRegistry

import lldscope

HOST = {"Host": "127.0.0.1"}


def test_the_first_answer_holds_the_layout_and_nothing_a_run_could_break_out_with(
    tmp_path: Path,
) -> None:
    name = "</script><script>alert(1)</script>{%scripts%}"
    with lldscope.Recorder(tmp_path / "evil", name=name) as recorder:
        recorder.step(step=0, n_responses=1, reward_sum=1.0)
    client = make_app(RunRegistry(tmp_path)).server.test_client()
    answer = client.get("/run/evil", headers=HOST)
    text = answer.get_data(as_text=True)
    assert "<script>alert" not in text
    assert answer.headers["Cache-Control"] == "no-cache"
    for kind in ("layout", "dependencies"):
        found = re.search(f'<script type="application/json" id="_dash-{kind}">(.*?)</script>', text)
        assert found is not None
        given = json.loads(found[1])
        assert given
        if kind == "layout":
            assert name in json.dumps(given)


def test_pages_with_charts_load_the_small_plotly_and_others_none(tmp_path: Path) -> None:
    client = make_app(RunRegistry(tmp_path)).server.test_client()
    for address, charts in (("/run/r", True), ("/compare", True), ("/", False), ("/rules", False)):
        text = client.get(address, headers=HOST).get_data(as_text=True)
        scripts = re.findall(r'<script src="([^"]*plotly[^"]*)"', text)
        assert scripts == [PLOTLY] * charts
    assert client.get(PLOTLY, headers=HOST).status_code == 200


def test_the_bundle_is_of_the_release_that_dash_is_made_for() -> None:
    """After an update of the plotly package: npm pack plotly.js-basic-dist-min@RELEASE."""
    theirs = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    ours = Path(lldscope_dashboard.__file__).parent / PLOTLY.lstrip("/")
    found = [
        re.search(r"plotly\.js .*?v([\d.]+)", file.read_text(encoding="utf-8")[:200])
        for file in (theirs, ours)
    ]
    releases = [match and match[1] for match in found]
    assert releases[0] is not None
    assert releases[0] == releases[1]
    assert "Licensed under the MIT license" in ours.read_text(encoding="utf-8")[:200]
    assert "MIT" in (ours.parent / "LICENSE").read_text(encoding="utf-8")
