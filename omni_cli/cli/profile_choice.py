"""The profile of a command that names none: derived from `--model`, for this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.cli.options import DEFAULT_PROFILE, ProfileOptions
from omni_cli.cli.terminal import console
from omni_cli.core.errors import UsageError

if TYPE_CHECKING:
    from omni_cli.config.families import Machine
    from omni_cli.measure.bench.profile_source import ProfileSource


def profile_source(options: ProfileOptions, lora: Sequence[str] | None = None) -> ProfileSource:
    """Return the profile of a command, named or derived, with the options over it. Raises `OmniError`.

    `lora` are those of `--lora`.
    """
    from omni_cli.config.bundled import find_profile
    from omni_cli.measure.bench.profile_source import ProfileSource

    path = find_profile(choose_profile(options.profile, options.model, quiet=options.quiet))
    overrides = tuple(options.set_ or ())
    source = ProfileSource(str(path.absolute()), overrides, options.model, options.seed, options.trust_remote_code)
    if not lora:
        return source
    first = source.load().stages[0].name
    return replace(source, overrides=(*overrides, *_lora_overrides(lora, first)))


def _lora_overrides(options: Sequence[str], stage: str) -> list[str]:
    """Return `--lora NAME=DIR` options as overrides of a stage's keys. Raises `UsageError`."""
    from omni_cli.config.stage_keys import ADAPTER_NAME_PATTERN

    adapters: dict[str, str] = {}
    for text in options:
        name, _, folder = text.partition("=")
        if not re.fullmatch(ADAPTER_NAME_PATTERN, name) or not folder:
            hint = "names have letters, digits, `_` and `-`: `--lora style=adapters/style`"
            raise UsageError(f"`--lora {text}` is not NAME=DIR", hint=hint)
        if name in adapters:
            raise UsageError(f"`--lora` names the adapter `{name}` twice", hint="give each a name of its own")
        adapters[name] = str(Path(folder).absolute())
    return [f"{stage}.lora.{name}={json.dumps(folder)}" for name, folder in adapters.items()]


def choose_profile(profile: str | None, model: str | None, *, quiet: bool = False) -> str:
    """Return `profile`, else the one for `model`, else the default; a name or a path.

    A bundled profile that names exactly this model is used. Otherwise one is derived and reported on stderr; its path
    is readable while this process runs. Raises `OmniError` for a model that cannot be read.
    """
    if profile is not None:
        return profile
    if model is None:
        return DEFAULT_PROFILE
    from omni_cli.config.loader import load_bundled

    bundled = next((name for name, config in load_bundled().items() if config.model == model), None)
    if bundled is not None:
        if not quiet:
            console.print_note(f"profile: {bundled}, which is for {model}")
        return bundled
    from omni_cli.config.yaml_tree import to_yaml

    data = derive(model)
    if not quiet:
        stages = " > ".join(data["stages"])
        console.print_note(f"profile: {data['description']} for this machine: {stages}")
        console.print_note(f"hint: `omni profiles create {shlex.quote(model)} -o FILE` writes it")
    return _in_memory(to_yaml(data))


def derive(model: str) -> dict[str, Any]:
    """Derive the data of a profile for a checkpoint and this machine; downloads no weights."""
    from omni_cli.checkpoints.derive import derive_profile
    from omni_cli.checkpoints.files import read_family
    from omni_cli.checkpoints.resolve import resolve_model
    from omni_cli.engine.describing import read_call

    folder = Path(resolve_model(model, settings_only=True))
    data = derive_profile(folder, this_machine(), model)
    role = read_family(folder).roles[0]
    if isinstance(role.takes, str):
        # The stage of a pipeline is named after the pipeline's output.
        (stage,) = data["stages"].values()
        data["stages"] = {read_call(role, model).makes or role.name: stage}
    return data


def _in_memory(text: str) -> str:
    """Return the path of a file in memory, which child processes can read and a killed process does not leave behind.

    A variant's process, perhaps of another commit, gets its profile as a path.
    """
    descriptor = os.memfd_create("profile")
    with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def this_machine() -> Machine:
    """Describe this machine by its devices."""
    from omni_cli.config.families import Machine
    from omni_cli.engine.devices import has_cuda_device

    return Machine("cuda" if has_cuda_device() else "cpu")
