"""A file system that lacks what a recorder needs is refused before a run begins. Files and folders
take their place when they are complete."""

from __future__ import annotations

import errno
import os

import pytest

import lldscope
from lldscope.core.errors import LldscopeError
from lldscope.recording import spool
from lldscope.storage.file_system import replacing

NUMBERS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
CALLS = {
    "fsync": "make files durable", "replace": "rename files", "ftruncate": "append to files",
    "unlink": "remove files",
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_mount_that_cannot_do_it_is_refused_with_what_to_do(tmp_path, monkeypatch, call, number):
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    (tmp_path / "mount").mkdir()
    monkeypatch.setenv("LLDSCOPE_SPOOL", str(tmp_path / "mount" / "spool"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        if call == "unlink":
            patch.setattr("pathlib.os.unlink", refuse)
        with pytest.raises(LldscopeError) as of_folder:
            lldscope.Recorder(tmp_path / "mount" / "runs" / "mine")
        with pytest.raises(LldscopeError) as of_spool:
            spool.Spool(lldscope.storage.url.Url("memory://bucket/mine"), 0, False, None)
    for error, advice in ((of_folder, "s3://BUCKET/RUN"), (of_spool, "LLDSCOPE_SPOOL")):
        assert CALLS[call] in str(error.value)
        assert os.strerror(number) in str(error.value)
        assert advice in str(error.value)
    if call != "unlink":
        assert not list((tmp_path / "mount").iterdir())


def test_a_full_disk_leaves_no_folder_that_looks_like_a_run(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(LldscopeError, match=r"cannot be written \(No space left on device\)"):
        lldscope.Recorder(tmp_path / "runs" / "mine")
    assert not list(tmp_path.iterdir())


def test_a_folder_takes_its_place_when_it_is_complete(tmp_path):
    place, draft = tmp_path / "cache" / "model", tmp_path / "cache" / f".model.{os.getpid()}"
    draft.mkdir(parents=True)  # of a killed process with this number
    (draft / "half").touch()
    for text in ("first", "second"):
        with replacing(place) as new:
            assert new == draft
            new.mkdir()
            (new / text).touch()
        assert [path.name for path in place.iterdir()] == [text]
    with replacing(place, keep=True) as new:
        new.mkdir()
    with pytest.raises(FileNotFoundError), replacing(place) as new:
        (new / "sub").mkdir()
    assert [path.name for path in place.iterdir()] == ["second"]
    assert [path.name for path in place.parent.iterdir()] == ["model"]
