"""The virtual environments of this checkout, and the versions they are made of.

    python .ci/environment.py install DIR FILE EXTRAS [REQUIREMENT…]
    python .ci/environment.py compile FILE EXTRAS [REQUIREMENT…]

`install` puts lldscope with these extras (`dash,trl`) and requirements into an environment, with
the versions in FILE; `compile` writes that file, with the newest versions that agree.

uv installs, in a fraction of pip's time, where it is there or can be had; else pip does. uv does
not read pip's configuration, so that is passed on, and both choose among the same packages.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MAIN = Path(".venv")  # uv is installed here if the machine has none

# A setting of pip → uv's variable for it, and what separates the values there.
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}

# Versions of these differ between torch for the CPU and torch for CUDA; the tests run without them.
DEPENDS_ON_THE_BUILD = ("torchaudio", "torchcodec", "torchvision", "triton")


def pip_settings(listing: str) -> dict[str, str]:
    """What holds for `pip install`, from the output of `pip config list`: lines of
    `section.key='value'`. A later section of these three overrides an earlier one."""
    return {
        key: ast.literal_eval(value)
        for section in ("global", "install", ":env:")
        for key, value in re.findall(rf"^{section}\.([\w-]+)=(.*)$", listing, re.M)
    }


def uv_variables(settings: dict[str, str]) -> dict[str, str]:
    """The same for uv, which compares all indexes if it is told to, as pip does."""
    said = {
        name: separator.join(settings[key].split())
        for key, (name, separator) in SETTINGS.items()
        if key in settings
    }
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **said}


def pip(python: Path, *arguments: str) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]


def environment(folder: Path) -> Path:
    """The Python of an environment, which is made if it is not there."""
    if not (folder / "bin" / "pip").exists():  # the last thing that is made
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def find_uv() -> str | None:
    beside = str(MAIN / "bin")
    if not (found := shutil.which("uv") or shutil.which("uv", path=beside)):
        subprocess.run(pip(environment(MAIN), "install", "--quiet", "uv"))
        found = shutil.which("uv", path=beside)
    return found


def uv_environment(python: Path) -> dict[str, str]:
    """Variables of a process of uv; those that are set already stay."""
    listing = subprocess.run(
        pip(python, "config", "list"), capture_output=True, text=True, check=True
    ).stdout
    return {**uv_variables(pip_settings(listing)), **os.environ}


def install(folder: str, constraints: str, extras: str, *requirements: str) -> int:
    python = environment(Path(folder))
    project = f".[{extras}]" if extras else "."  # pip takes ".[]" for a folder
    what = ["-c", constraints, "-e", project, *requirements]
    if uv := find_uv():
        command = [uv, "pip", "install", "--python", str(python), *what]
        variables = uv_environment(python)
        plan = subprocess.run(
            [*command, "--dry-run"], env=variables, capture_output=True, text=True
        )
        if "nvidia-cublas" in plan.stderr:
            # CUDA is several GB. pip may know of a torch without it; uv keeps what is installed.
            subprocess.run(pip(python, "install", "--quiet", "-c", constraints, "torch"))
        if subprocess.run([*command, "--quiet"], env=variables).returncode == 0:
            if os.environ.get("PYTHONDONTWRITEBYTECODE"):
                # Python would compile what it imports anew each time. uv's own way gives up after
                # a minute on a busy machine; some files of packages are no valid Python.
                byte_compile = [str(python), "-m", "compileall", "-q", "-j0", f"{folder}/lib"]
                subprocess.run(byte_compile, stdout=subprocess.DEVNULL)
            return 0
        print("uv could not install this; pip tries.", file=sys.stderr)
    return subprocess.run(pip(python, "install", "--quiet", *what)).returncode


def compile_versions(file: str, extras: str, *requirements: str) -> int:
    uv = find_uv()
    if uv is None:
        print("uv is needed for this: https://docs.astral.sh/uv/", file=sys.stderr)
        return 1
    done = subprocess.run(
        [
            uv, "pip", "compile", "--quiet", "--python-version=3.11", "--python-platform=linux",
            "--no-annotate", "--no-emit-index-url", "--no-emit-find-links",
            *(f"--no-emit-package={name}" for name in DEPENDS_ON_THE_BUILD),
            "--custom-compile-command", "make constraints",
            *(f"--extra={extra}" for extra in extras.split(",")), "pyproject.toml", "-",
        ],
        env=uv_environment(environment(MAIN)), input="\n".join(requirements),
        stdout=subprocess.PIPE, text=True,
    )
    if done.returncode == 0:
        # 2.13.0 is any build of torch, 2.13.0+cpu that of one machine.
        Path(file).write_text(re.sub(r"\+\w+$", "", done.stdout, flags=re.M))
    return done.returncode


if __name__ == "__main__":
    action, *arguments = sys.argv[1:]
    sys.exit((install if action == "install" else compile_versions)(*arguments))
