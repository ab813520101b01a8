"""Vector instructions less than the processor has, asked of each library with a switch of its own.

numpy takes a list of features (NPY_DISABLE_CPU_FEATURES), torch, oneDNN, MKL and OpenBLAS the best
set they may use, and glibc (the logarithms and exponentials of Python itself) what it must not.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import cache

SWITCHES = (
    "NPY_DISABLE_CPU_FEATURES",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
    "GLIBC_TUNABLES",
)

# What numpy finds beyond its baseline, and torch's best set, on the processor as it is.
_FOUND = """
import json
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
try:
    import torch
    best = torch.backends.cpu.get_cpu_capability()
except ModuleNotFoundError:
    best = "DEFAULT"
print(json.dumps([[name for name in __cpu_dispatch__ if __cpu_features__[name]], best]))
"""


def cleared() -> dict[str, str]:
    """The environment without any of the switches."""
    return {name: value for name, value in os.environ.items() if name not in SWITCHES}


@cache
def detect() -> tuple[list[str], str]:
    """Features beyond numpy's baseline, in numpy's order, and torch's capability; of this machine,
    whatever this process was told to leave out."""
    done = subprocess.run(
        [sys.executable, "-c", _FOUND], env=cleared(), capture_output=True, text=True, check=True
    )
    features, best = json.loads(done.stdout)
    return features, best


def beyond_baseline() -> str:
    """For NPY_DISABLE_CPU_FEATURES: all that this processor has beyond numpy's baseline."""
    return " ".join(detect()[0])


def instruction_sets() -> dict[str, dict[str, str]]:
    """Name → switches, those that differ on this machine: all it has, that without AVX-512 (x86
    of 2013 on), and the baseline that every processor has."""
    features, best = detect()
    # numpy names features (AVX512F, AVX512_SKX) or, from 2.4 on, levels of them (X86_V4).
    wide = [name for name in features if name.startswith("AVX512") or name == "X86_V4"]
    sets = {"all": {}}
    intel = platform.machine().lower() in ("x86_64", "amd64")
    if wide:
        sets["AVX2"] = {"NPY_DISABLE_CPU_FEATURES": " ".join(wide)}
        if best == "AVX512":
            sets["AVX2"]["ATEN_CPU_CAPABILITY"] = "avx2"
        if intel:
            sets["AVX2"] |= {
                "ONEDNN_MAX_CPU_ISA": "AVX2",
                "MKL_ENABLE_INSTRUCTIONS": "AVX2",
                "OPENBLAS_CORETYPE": "Haswell",
            }
    sets["baseline"] = {
        "NPY_DISABLE_CPU_FEATURES": " ".join(features),
        "ATEN_CPU_CAPABILITY": "default",
    }
    if intel:
        sets["baseline"] |= {
            "ONEDNN_MAX_CPU_ISA": "SSE41",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
            "OPENBLAS_CORETYPE": "Nehalem",
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F,-BMI2",
        }
    return sets


if __name__ == "__main__":
    print(beyond_baseline())
