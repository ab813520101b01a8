"""The files of docs/deploy, each run as far as this machine can: Prometheus and nginx of Debian,
systemd's own check, the image's installation in its own environment, the prolog by a shell."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from browsing import CHROMIUM, FLAGS, WAIT
from installation import ROOT, environment_with, wheel_of
from recorded_steps import wait_until

import lldscope

DEPLOY = ROOT / "docs" / "deploy"
TOKEN = "of-the-dashboard-alone"
SAMPLES = ROOT / "sample_runs"


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile: name and arguments."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    return [(w[0], w[1]) for line in text.splitlines() if line and line[0] != "#"
            for w in [line.split(None, 1)]]


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def process(*command: Any, port: int, **environment: str) -> Iterator[None]:
    """A server, until it listens and to the end of the block."""
    server = subprocess.Popen([*map(str, command)], env=os.environ | environment)
    try:
        wait_until(lambda: server.poll() is not None or is_open(port), 300)
        assert server.poll() is None
        yield
    finally:
        server.terminate()
        server.wait(60)


def status(address: str, **headers: str) -> int:
    try:
        with urlopen(Request(address, headers=headers), timeout=60) as reply:
            return int(reply.status)
    except HTTPError as error:
        return error.code


def test_the_image_and_what_runs_it_agree():
    last = dict(instructions())
    assert int(last["USER"]) > 0
    assert json.loads(last["ENTRYPOINT"]) == ["lldscope"]
    assert json.loads(last["CMD"])[:2] == ["dash", "/runs"]
    assert {source for name, text in instructions() if name == "COPY" and "--from" not in text
            for source in text.split()[:-1]} == {".", "constraints.txt"}
    source = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    needed = tomllib_sources()
    assert {f"!{name}" for name in needed} <= {*source}
    for name in source[1:]:
        assert (ROOT / name[1:]).exists(), name

    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert (DEPLOY / compose["services"]["lldscope"]["build"]["context"]).resolve() == ROOT
    assert (DEPLOY / "../prometheus/rules.yml").is_file()
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert str(pod["spec"]["securityContext"]["runAsUser"]) == last["USER"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == int(last["EXPOSE"])
    runs, temporary = container["volumeMounts"]
    assert (runs["mountPath"], runs["readOnly"]) == ("/runs", True)
    assert last["ENV"].startswith(f"XDG_CACHE_HOME={temporary['mountPath']}/")
    assert compose["services"]["lldscope"]["volumes"][0].endswith(":/runs:ro")


def tomllib_sources() -> set[str]:
    """What building the wheel takes from the checkout."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = project["tool"]["setuptools"]["package-dir"].values()
    return {*folders, "pyproject.toml", "README.md", "LICENSE", "constraints.txt"}


@pytest.mark.slow
def test_the_image_s_commands_serve_runs(tmp_path):
    """What RUN installs, ENTRYPOINT with CMD, and HEALTHCHECK, without the image around them."""
    (extras,) = re.findall(r"\*\.whl\)\[([\w,]+)\]", dict(instructions())["RUN"])
    for name in dict(instructions())["COPY"].split()[:-1]:
        assert (ROOT / name).exists()
    source = tmp_path / "src"
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split()[1:]:
        copy = shutil.copytree if (ROOT / line[1:]).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / line[1:], source / line[1:])
    wheel = wheel_of(source, tmp_path / "wheels")
    bin_ = environment_with(tmp_path / "venv", [f"{wheel}[{extras}]"]).parent

    port, last = free_port(), dict(instructions())
    (name,) = json.loads(last["ENTRYPOINT"])
    command = [SAMPLES if word == "/runs" else word for word in json.loads(last["CMD"])]
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "LLDSCOPE_TOKEN": TOKEN, "PYTHONPATH": ""}
    with process(bin_ / name, *command, "--port", port, port=port, **cache):
        address = f"http://127.0.0.1:{port}/metrics"
        assert status(address) == 401
        assert status(address, Authorization=f"Bearer {TOKEN}") == 200
        check = json.loads(last["HEALTHCHECK"].removeprefix("CMD "))
        check = [word.replace("8050", str(port)) for word in check]
        assert subprocess.run([bin_ / check[0], *check[1:]]).returncode == 0
    assert subprocess.run([bin_ / check[0], *check[1:]], capture_output=True).returncode == 1


def test_systemd_takes_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not on this machine")
    text = (DEPLOY / "lldscope.service").read_text()
    unit = tmp_path / "lldscope.service"
    script = Path(sys.prefix, "bin", "lldscope")
    unit.write_text(text.replace("/opt/lldscope/bin/lldscope", str(script)))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", unit]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def proxied(tmp_path) -> Iterator[str]:
    """The sample runs behind nginx.conf and lldscope.service's command: the address there."""
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("Debian's nginx is not on this machine")
    dash, port = free_port(), free_port()
    (tmp_path / "htpasswd").write_text("ann:{PLAIN}secret\n")
    site = (DEPLOY / "nginx.conf").read_text()
    for old, new in {
        "listen 8080": f"listen 127.0.0.1:{port}", "127.0.0.1:8050": f"127.0.0.1:{dash}",
        "/etc/nginx/lldscope.htpasswd": str(tmp_path / "htpasswd"),
        "Bearer TOKEN": f"Bearer {TOKEN}",
    }.items():
        assert site.count(old) == 1, old
        site = site.replace(old, new)
    folders = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; worker_processes 1;\n"
        f"{'user root;' if os.geteuid() == 0 else ''} events {{}} http {{ access_log off; {folders}"
        f"include /etc/nginx/mime.types;\n{site} }}"
    )
    (line,) = re.findall(r"ExecStart=\S+ (.*)", (DEPLOY / "lldscope.service").read_text())
    words = [SAMPLES if word == "/srv/runs" else word for word in line.split()]
    environment = {"LLDSCOPE_TOKEN": TOKEN, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with process(
        sys.executable, "-m", "lldscope", *words, "--port", dash, port=dash, **environment
    ), process("/usr/sbin/nginx", "-c", tmp_path / "nginx.conf", "-e", tmp_path / "error.log",
               port=port):
        assert status(f"http://127.0.0.1:{dash}/", **{"X-Forwarded-User": "ann"}) == 401
        yield f"127.0.0.1:{port}/lldscope/"


@pytest.mark.browser
@pytest.mark.engine
def test_behind_a_proxy_below_a_prefix_every_link_leads_on(proxied):
    from playwright.sync_api import sync_playwright

    assert status(f"http://{proxied}") == 401
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        context = browser.new_context(http_credentials={"username": "ann", "password": "secret"})
        page = context.new_page()
        page.set_default_timeout(WAIT)
        bad: list[str] = []
        page.on("response", lambda r: r.status >= 400 and bad.append(f"{r.status} {r.url}"))
        page.on("pageerror", lambda error: bad.append(str(error)))
        page.goto(f"http://{proxied}")
        page.click("a.run-link:text-is('grpo')")
        page.wait_for_selector(".js-plotly-plot .main-svg")
        assert page.url.startswith(f"http://{proxied}run/grpo")
        links = page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)")
        assert not [link for link in links if not link.startswith(f"http://{proxied}")]
        for kind in ("responses", "config"):
            page.goto(next(link for link in links if link.startswith(f"http://{proxied}{kind}/")))
            page.wait_for_selector("#page table")
        report = next(link for link in links if link.startswith(f"http://{proxied}report/"))
        assert context.request.get(report).ok
        page.click("#brand")
        for name in ("grpo", "grpo-llds"):
            page.click(f"[data-pick='{name}']")
        page.click("#compare.primary")
        page.wait_for_selector(".js-plotly-plot .main-svg")
        assert page.url.startswith(f"http://{proxied}compare?run=grpo&run=grpo-llds")
        assert bad == []
        browser.close()


def test_the_prolog_watches_the_job_s_run_and_is_silent(tmp_path):
    run = tmp_path / "runs" / "mine"
    with lldscope.Recorder(run) as recorder:
        recorder.step(step=0, n_responses=2, reward_sum=1.0)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "lldscope").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m lldscope "$@"\n'
    )
    (tmp_path / "bin" / "lldscope").chmod(0o755)
    for variables, watches in (
        ({"SLURM_PROCID": "0", "LLDSCOPE_RUN": str(run)}, True),
        ({"SLURM_PROCID": "1", "LLDSCOPE_RUN": str(run)}, False),
        ({"SLURM_PROCID": "0"}, False),
        ({"SLURM_PROCID": "0", "LLDSCOPE_RUN": str(run), "PATH": "/usr/bin:/bin"}, False),
    ):
        log = tmp_path / "lldscope-7.log"
        log.unlink(missing_ok=True)
        environment = os.environ | {
            "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path), "PYTHONPATH": str(ROOT),
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        } | variables
        done = subprocess.run(
            [DEPLOY / "task-prolog.sh"], env=environment, capture_output=True, cwd=tmp_path
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        if watches:
            wait_until(lambda: log.exists() and "step 0" in log.read_text(), 300)  # noqa: B023
        assert log.exists() == watches
