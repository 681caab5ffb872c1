"""The environment of a measurement: machine, versions, variables, code. Imports neither torch nor vLLM."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import omni_cli
from omni_cli.core.machine import read_cpu, read_gpus, read_memory
from omni_cli.core.version import git_output, read_commit
from omni_cli.measure.doctor.packages import RECORDED_PACKAGES, get_installed_version

# Variables that affect speed; of all others not even the name is recorded.
_VARIABLES = re.compile(
    r"(CUDA|NVIDIA|NCCL|CUBLAS|CUDNN|OMP|KMP|GOMP|MKL|OPENBLAS|VECLIB|NUMEXPR|MALLOC|VLLM|TORCH|TORCHINDUCTOR"
    r"|TORCHDYNAMO|PYTORCH|TRITON|FLASHINFER)_.+|LD_PRELOAD|PYTHONMALLOC|PYTHONHASHSEED|PYTHONOPTIMIZE"
    r"|HF_HUB_OFFLINE|TOKENIZERS_PARALLELISM"
)
_SECRET = re.compile(r"KEY|TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def read_environment(variables: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the record's `environment`. Two records must agree in all of it except `code` and `conditions`."""
    cpu, memory, gpus = read_cpu(), read_memory(), read_gpus()
    return {
        "machine": {
            "system": platform.system(),
            "kernel": platform.release(),
            "cpu": cpu.model,
            "architecture": cpu.architecture,
            "cores": cpu.cores,
            "usable_cores": cpu.usable_cores,
            "instruction_sets": list(cpu.instruction_sets),
            # Whole GiB: the memory that the kernel reserves for itself varies slightly from boot to boot.
            "memory_gib": round(min(memory.total_bytes, memory.limit_bytes or memory.total_bytes) / 2**30),
            "gpus": [{"name": gpu.name, "total_bytes": gpu.total_bytes} for gpu in gpus.devices],
            "driver": gpus.driver,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: number for name in RECORDED_PACKAGES if (number := get_installed_version(name)) is not None},
        },
        "variables": relevant_variables(variables),
        "code": code_version(Path(omni_cli.__file__).parents[1]),
        # What nobody chooses.
        "conditions": {"load_average": list(os.getloadavg()), "python": sys.executable},
    }


def relevant_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect libraries, without any that may be a secret."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if _VARIABLES.fullmatch(name) and not _SECRET.search(name)
    }


def code_version(root: Path) -> dict[str, object]:
    """Return omni's version and its commit; `dirty` means that files of the package were changed in its clone."""
    version: dict[str, object] = {"omni": omni_cli.__version__}
    commit = read_commit(root)
    if commit is not None:
        is_clone = (root / ".git").exists()
        changes = git_output(root, "status", "--porcelain", "--", "omni_cli", "profiles") if is_clone else None
        version |= {"commit": commit, "dirty": bool(changes)}
    return version
