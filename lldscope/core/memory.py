"""How much memory the machine has left."""

from __future__ import annotations

import os


def free_memory() -> int:
    """Bytes that a process can take without pushing others out; where the system does not say, all
    that the machine has."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
