"""`omni profiles`: list, show and validate profiles, and print their JSON Schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_cli.cli.lazy import command_group
from omni_cli.cli.options import (
    DEFAULT_PROFILE,
    DisplayOptions,
    JsonOption,
    ModelOption,
    SeedOption,
    SetOption,
    TrustRemoteCodeOption,
    write_report,
)
from omni_cli.cli.profile_choice import choose_profile, derive
from omni_cli.cli.terminal import console
from omni_cli.core.errors import ExitCode, OutputError, UsageError
from omni_cli.report.tables import align

if TYPE_CHECKING:
    from omni_cli.config.schema import EngineConfig


def list_profiles(display: DisplayOptions) -> None:
    """List the bundled profiles."""
    from omni_cli.config.bundled import bundled_data, bundled_profiles

    profiles = bundled_data()
    if display.as_json:
        entries = [
            {
                **{key: data[key] for key in ("name", "description", "model", "dtype")},
                "stages": [{"name": stage, "kind": keys["kind"]} for stage, keys in data["stages"].items()],
                "path": str(bundled_profiles()[name]),
            }
            for name, data in profiles.items()
        ]
        console.print_json({"schema": "omni.profiles.list/1", "profiles": entries})
        return
    rows = [("NAME", "STAGES", "DESCRIPTION")]
    rows += [(data["name"], " > ".join(data["stages"]), data["description"]) for data in profiles.values()]
    console.print_text("\n".join(line[2:] for line in align(rows)))


def show(
    display: DisplayOptions,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|PATH", help=f"Profile to show. Default: derived from `--model`, else {DEFAULT_PROFILE}."
        ),
    ] = None,
    option_profile: Annotated[
        str | None, typer.Option("--profile", "-p", metavar="NAME|PATH", help="Same as the argument.")
    ] = None,
    model: ModelOption = None,
    overrides: SetOption = None,
    seed: SeedOption = None,
    trust_remote_code: TrustRemoteCodeOption = False,
) -> None:
    """Show a profile as YAML, fully resolved: with its defaults, `--set`, `--model` and `--seed`."""
    from omni_cli.config.loader import load_profile
    from omni_cli.config.schema import profile_data
    from omni_cli.config.yaml_tree import to_yaml

    if profile is not None and option_profile is not None:
        raise UsageError("the profile is given twice", hint="omit `--profile` or the argument")
    config = load_profile(
        choose_profile(profile or option_profile, model, quiet=display.quiet),
        overrides or (),
        model=model,
        trust_remote_code=trust_remote_code,
        seed=seed,
    )
    data = profile_data(config)
    if display.as_json:
        console.print_json(
            {"schema": "omni.profiles.show/1", "profile": data, "trust_remote_code": config.trust_remote_code}
        )
        return
    console.print_text(to_yaml(data) + _memory_comment(config))


def validate(
    display: DisplayOptions,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Profiles to check: files, or bundled ones by name.")
    ],
) -> None:
    """Check profiles and show every mistake in each; exit code 2 if there is one."""
    results = [_check(file) for file in files]
    if display.as_json:
        console.print_json({"schema": "omni.profiles.validate/1", "profiles": results})
    elif not display.quiet:
        for result in results:
            if result["valid"]:
                console.print_text(f"{result['path']}: ok")
    if not all(result["valid"] for result in results):
        raise typer.Exit(ExitCode.USAGE)


def create(
    display: DisplayOptions,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint: a folder or a Hugging Face repo id.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="New file to write. Default: stdout.")
    ] = None,
) -> None:
    """Write a profile derived from a checkpoint, with defaults for this machine."""
    from omni_cli.config.yaml_tree import to_yaml

    data = derive(model)
    if output is not None:
        if output.exists():
            raise OutputError(f"`{output}` exists already", hint="name a new file, or remove that one")
        if not Path(model).is_absolute() and Path(model).is_dir():
            data = {**data, "model": os.path.relpath(model, output.parent)}
        write_report(output, to_yaml(data))
    if display.as_json:
        path = None if output is None else str(output)
        console.print_json({"schema": "omni.profiles.create/1", "profile": data, "path": path})
    elif output is None:
        console.print_text(to_yaml(data))
    elif not display.quiet:
        console.print_note(f"wrote {output}; use it with `--profile {output}`")


def schema(as_json: JsonOption = False) -> None:
    """Print the JSON Schema of a profile, for editors.

    Save it next to a profile and start the profile with `# yaml-language-server: $schema=FILE`.
    """
    from omni_cli.config.roles import json_schema

    console.print_json(json_schema())


def _memory_comment(config: EngineConfig) -> str:
    """Return the planned memory of a chain as comments; nothing if it cannot be known before a download."""
    if all(stage.kind != "ar" for stage in config.stages):
        return ""
    from omni_cli.checkpoints.resolve import find_folder
    from omni_cli.core.errors import CheckpointError
    from omni_cli.engine.memory_plan import plan_profile
    from omni_cli.report.tables import memory_lines

    try:
        folder = find_folder(config.model)
        plan = plan_profile(config if folder is None else config.model_copy(update={"model": str(folder)}))
    except CheckpointError:
        return ""  # loading reports it
    if plan is None:
        return ""
    lines = ["memory on this machine, as planned:", *memory_lines(plan.stages)]
    lines += [f"  missing: {item}" for item in plan.missing]
    return "\n" + "".join(f"# {line}\n" for line in lines)


def _check(name_or_path: str) -> dict[str, object]:
    """Check one profile, show its mistakes on stderr, and return its entry for `--json`."""
    from omni_cli.config.bundled import find_profile
    from omni_cli.config.diagnostics import InvalidProfileError
    from omni_cli.config.loader import check_profile
    from omni_cli.core.errors import ProfileError

    entry: dict[str, object] = {"path": name_or_path, "valid": True, "diagnostics": []}
    try:
        diagnostics = check_profile(find_profile(name_or_path))
        if diagnostics:
            raise InvalidProfileError(diagnostics)
    except ProfileError as error:
        console.print_error(error)
        console.print_note("")
        mistakes = [item.as_dict() for item in getattr(error, "diagnostics", ())]
        unreadable = {"source": name_or_path, "line": None, "column": None}
        entry["valid"] = False
        entry["diagnostics"] = mistakes or [{**unreadable, "message": error.message, "hint": error.hint}]
    return entry


profiles = command_group(
    "List, show, check and create YAML profiles.",
    list=list_profiles,
    show=show,
    validate=validate,
    create=create,
    schema=schema,
)
