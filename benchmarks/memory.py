"""How much memory a process takes, for other benchmarks.

From /proc: what getrusage() tells of a process includes its parent, which it was until it began.
"""

from __future__ import annotations

from pathlib import Path


def resident(pid: int | str, field: str) -> float:
    """MiB: VmRSS is what a process holds now, VmHWM the most that it has held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return float(line.split()[1]) / 1024
    raise SystemExit(f"no {field} of process {pid}")
