"""Damaged runs that an earlier version wrote are read as they always were (tests/fixtures/
make_damaged.py makes them, and is never to make those anew)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures.make_damaged import ARCHIVE, DAMAGE, EXPECTED, reading

from lldscope.cli import cli

READINGS = json.loads(EXPECTED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_every_kind_of_damage_is_there():
    assert set(DAMAGE) == set(READINGS)


@pytest.mark.parametrize("name", READINGS)
def test_a_damaged_run_is_read_as_it_always_was(runs, name):
    assert json.loads(json.dumps(reading(runs / name))) == READINGS[name]


@pytest.mark.parametrize("name", sorted(set(READINGS) - {"intact", "earlier-version"}))
def test_damage_is_said_or_costs_nothing(runs, name):
    read, intact = READINGS[name], READINGS["intact"]
    same = all(read[key] == intact[key] for key in ("steps", "responses", "reward", "events"))
    assert same or read["damaged"]
    output = CliRunner().invoke(cli, ["check", str(runs / name)], catch_exceptions=False).output
    for where in read["damaged"]:
        assert where in output
