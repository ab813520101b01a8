"""Runs jobs in processes of their own, several at a time; what is done stays done.

A job is locked while it runs, by a lock that its process inherits: several drivers may work on one
study, and one that was killed leaves no two processes in one directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

POLL = 0.2  # seconds
GRACE = 20.0  # seconds a process gets to end after Ctrl-C
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Job:
    """A command that fills a folder.

    `finish` is called with the processor seconds it took once it has ended well, and says in one
    line what came out; an exception in it is a failure of the job. `needs` is a file that has to be
    there before it can start, `done` says whether somebody has done it meanwhile, `before` is
    called when it starts.
    """

    name: str
    command: Sequence[str]
    folder: Path
    finish: Callable[[float], str]
    needs: Path | None = None
    done: Callable[[], bool] = lambda: False
    before: Callable[[], object] = lambda: None

    def beside(self, suffix: str) -> Path:
        """A file of the job beside its folder."""
        return self.folder.with_name(self.folder.name + suffix)

    @property
    def log(self) -> Path:
        return self.beside(".log")

    @property
    def failed(self) -> Path:
        """There if the last attempt failed; says why."""
        return self.beside(".failed")


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    lock: int
    started: float = field(default_factory=time.monotonic)
    cpu_seconds: float = 0.0


@dataclass
class Outcome:
    """What a driver did."""

    finished: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # needs something that never came


def drive(
    jobs: Sequence[Job],
    parallel: int,
    say: Callable[[str], None] = print,
    tick: Callable[[list[Job]], None] = lambda running: None,
) -> Outcome:
    """Run what is not done, at most `parallel` at a time, in the order given as far as `needs`
    allow. Failures are told and do not stop the rest. `tick` sees what runs, several times a
    second.

    On KeyboardInterrupt the running processes are ended and waited for, and it is raised again.
    """
    waiting, running, outcome = list(jobs), list[_Running](), Outcome()
    try:
        while waiting or running:
            while len(running) < parallel and (job := _next(waiting)):
                waiting.remove(job)
                if (process := _start(job, say)) is not None:
                    running.append(process)
            if not running:
                outcome.left = [job.name for job in waiting]
                break
            tick([r.job for r in running])
            time.sleep(POLL)
            for child in [r for r in running if _has_ended(r)]:
                running.remove(child)
                well = _end(child, say)
                (outcome.finished if well else outcome.failed).append(child.job.name)
    except KeyboardInterrupt:
        _stop(running)
        raise
    return outcome


def _next(waiting: list[Job]) -> Job | None:
    return next((job for job in waiting if job.needs is None or job.needs.exists()), None)


def _start(job: Job, say: Callable[[str], None]) -> _Running | None:
    """None if the job is done, or another driver is at it."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(job.beside(".lock"), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        say(f"{job.name}: another driver is at it")
        return None
    if job.done():
        os.close(lock)
        return None
    if job.folder.exists():
        shutil.rmtree(job.folder)  # half done
    job.failed.unlink(missing_ok=True)
    job.before()
    with job.log.open("wb") as log:
        process = subprocess.Popen(
            job.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT}, pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C reaches the driver alone, which passes it on
        )
    say(f"{job.name}: started")
    return _Running(job, process, lock)


def _has_ended(r: _Running) -> bool:
    """Like `poll()`, and keeps what the process took of the processor."""
    pid, status, used = os.wait4(r.process.pid, os.WNOHANG)
    if pid:
        r.process.returncode = os.waitstatus_to_exitcode(status)
        r.cpu_seconds = used.ru_utime + used.ru_stime
    return pid != 0


def _end(child: _Running, say: Callable[[str], None]) -> bool:
    job, seconds = child.job, time.monotonic() - child.started
    try:
        if child.process.returncode != 0:
            raise RuntimeError(f"exit code {child.process.returncode}: {_last_line(job.log)}")
        say(f"{job.name}: {job.finish(child.cpu_seconds)}")
        return True
    except Exception as error:  # whatever it is, the other runs go on
        job.failed.write_text(f"{error}\n", encoding="utf-8")
        say(f"{job.name}: failed after {seconds:.0f} s, {error} ({job.log})")
        return False
    finally:
        os.close(child.lock)


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no output")


def _stop(running: list[_Running]) -> None:
    for r in running:
        r.process.terminate()  # not an interrupt: what a shell has put behind ignores those
    for r in running:
        try:
            r.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            r.process.kill()
            r.process.wait()
        os.close(r.lock)
