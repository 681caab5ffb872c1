"""The profile of a command, named or derived from `--model` for this machine, and the download of its model."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from omni_cli.cli.options import DEFAULT_PROFILE, ProfileOptions
from omni_cli.cli.terminal import console, interrupts
from omni_cli.cli.terminal.live_display import REFRESH_PER_SECOND, LiveLine
from omni_cli.core.errors import UsageError
from omni_cli.report.units import count, memory, size

if TYPE_CHECKING:
    from omni_cli.checkpoints.hub import Download
    from omni_cli.config.families import Machine
    from omni_cli.config.schema import EngineConfig
    from omni_cli.measure.bench.profile_source import ProfileSource

_ASKS_ABOVE_BYTES = 5 * 10**9
RANDOM_WEIGHTS = "{name} has random weights: what it makes has no meaning"


def profile_source(options: ProfileOptions, lora: Sequence[str] | None = None) -> ProfileSource:
    """Return the profile of a command, named or derived, with the options over it. Raises `OmniError`.

    `lora` are those of `--lora`.
    """
    from omni_cli.config.bundled import find_profile
    from omni_cli.measure.bench.profile_source import ProfileSource

    number = options.profile or ""
    if number.isdigit() and not Path(number).exists():
        meant = {"port": f"did you mean `--port {number}`?", "url": f"did you mean `--url http://127.0.0.1:{number}`?"}
        hint = next((meant[name] for name in meant if hasattr(options, name)), "`omni profiles list` has their names")
        raise UsageError(f"no profile named `{number}`: `-p` is `--profile`", hint=hint)
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
    from omni_cli.config.bundled import bundled_data

    bundled = next((name for name, data in bundled_data().items() if data["model"] == model), None)
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

    folder = Path(resolve_model(model, settings_only=True))
    data = derive_profile(folder, this_machine(), model)
    role = read_family(folder).roles[0]
    if isinstance(role.takes, str):
        # The stage of a pipeline is named after the pipeline's output.
        from omni_cli.engine.describing import read_call

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


def fetch_model(config: EngineConfig, *, quiet: bool) -> None:
    """Download a profile's model if it is a repository that the cache lacks. Raises `OmniError`."""
    from omni_cli.checkpoints.files import REPO_ID
    from omni_cli.engine.checkpoint_fit import check_start

    if REPO_ID.fullmatch(config.model) and check_start(config) is None:
        pull(config.model, None, yes=False, quiet=quiet)


def note_random_weights(config: EngineConfig, *, quiet: bool) -> None:
    """Tell the user of a checkpoint that was built and never trained."""
    from omni_cli.config.families import has_random_weights

    if not quiet and has_random_weights(config.model):
        console.print_note(RANDOM_WEIGHTS.format(name=config.name))


def pull(repo_id: str, revision: str | None, *, yes: bool, quiet: bool) -> tuple[Download, Path]:
    """Download what the cache lacks of a repository. Raises `OmniError`."""
    from omni_cli.checkpoints.hub import fetch, plan_download

    plan = plan_download(repo_id, revision)
    if plan.missing_bytes == 0 or plan.files is None:
        return plan, fetch(plan)
    if plan.missing_bytes > _ASKS_ABOVE_BYTES and not yes:
        confirm(f"Download {repo_id}, {memory(plan.missing_bytes)}?", f"omni models pull {repo_id} --yes")
    if not quiet:
        of = "" if plan.missing_bytes == plan.size_bytes else f" of {size(plan.size_bytes)}"
        console.print_note(f"downloading {repo_id}: {size(plan.missing_bytes)}{of}, {count(len(plan.files), 'file')}")
    progress = _Progress(plan, quiet=quiet)
    try:
        waiting = f"another process downloads {repo_id}: waiting for it"
        folder = fetch(plan, progress.advance, lambda: console.print_note(waiting))
    finally:
        progress.line.end()
        interrupts.check()
    return plan, folder


def confirm(question: str, command: str) -> None:
    """Ask on the terminal; a `no` raises `UsageError`, and so does a missing terminal, naming the `command`."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"no terminal to ask on: {question}", hint=f"to agree, run `{command}`")
    if not typer.confirm(question, err=True):
        raise UsageError("stopped, nothing was changed")


class _Progress:
    """Bytes and rate as a live line on a terminal; advanced by the threads of a download."""

    def __init__(self, plan: Download, *, quiet: bool) -> None:
        self._plan = plan
        self.line = LiveLine(sys.stderr, quiet=quiet, verbose=False)
        self._lock = threading.Lock()
        self._began_s = self._shown_s = time.monotonic()
        self._num_bytes = 0.0

    def advance(self, num_bytes: float) -> None:
        """Count new bytes; raise `KeyboardInterrupt` after an interrupt, which ends the thread's download."""
        interrupts.check()
        with self._lock:
            now = time.monotonic()
            self._num_bytes += num_bytes
            if now - self._shown_s >= 1 / REFRESH_PER_SECOND:
                self._shown_s = now
                done, rate = int(self._num_bytes), int(self._num_bytes / (now - self._began_s))
                self.line.say(f"{size(done)} of {size(self._plan.missing_bytes)}, {size(rate)}/s")
