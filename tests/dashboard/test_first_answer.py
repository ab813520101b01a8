"""What the first answer to an address holds, and which plotly.js it loads."""

from __future__ import annotations

import re
from pathlib import Path

import lldscope_dashboard
import plotly
from lldscope_dashboard.app import make_app
from lldscope_dashboard.data.run_registry import RunRegistry

import lldscope

PLOTLY = "/assets/plotly/plotly-basic.min.js"
HOST = {"Host": "127.0.0.1"}


def test_the_first_answer_names_nothing_of_a_run_and_has_a_nonce_of_its_own(tmp_path: Path) -> None:
    with lldscope.Recorder(tmp_path / "evil", name="</script>evil") as recorder:
        recorder.step(step=0, n_responses=1, reward_sum=1.0)
    client = make_app(RunRegistry(tmp_path)).server.test_client()
    nonces = set()
    for _ in range(2):
        answer = client.get("/run/evil", headers=HOST)
        text = answer.get_data(as_text=True)
        assert "evil" not in text
        assert PLOTLY in text
        (nonce,) = re.findall('<style nonce="([^"]+)">', text)
        assert f"'nonce-{nonce}'" in answer.headers["Content-Security-Policy"]
        nonces.add(nonce)
    assert len(nonces) == 2
    assert client.get("/nothing", headers=HOST).status_code == 404


def test_the_bundle_is_of_the_release_that_dash_is_made_for() -> None:
    """After an update of the plotly package: npm pack plotly.js-basic-dist-min@RELEASE."""
    theirs = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    ours = Path(lldscope_dashboard.__file__).parent / PLOTLY.lstrip("/")
    matches = [
        re.search(r"plotly\.js .*?v([\d.]+)", file.read_text(encoding="utf-8")[:200])
        for file in (theirs, ours)
    ]
    releases = [match and match[1] for match in matches]
    assert releases[0] is not None
    assert releases[0] == releases[1]
    assert "Licensed under the MIT license" in ours.read_text(encoding="utf-8")[:200]
    assert "MIT" in (ours.parent / "LICENSE").read_text(encoding="utf-8")
