"""`omni doctor`: what this machine can run, and the commands that install missing packages."""

from __future__ import annotations

from typing import Annotated

import typer

from omni_cli.cli.options import JsonOption, ModelOption, ProfileOption, VerboseOption
from omni_cli.cli.profile_choice import choose_profile
from omni_cli.cli.terminal import console
from omni_cli.core.errors import ExitCode

TINY_PROFILES = frozenset({"tiny-omni", "tiny-image"})


def doctor(
    profile: ProfileOption = None,
    model: ModelOption = None,
    install: Annotated[
        bool, typer.Option("--install", help="Print the commands that install all that this machine can run.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Show what this machine can run: Python, torch, vLLM, diffusers, devices, memory, and what is missing.

    Exits with 0 if the profiles that need no download, or the given one, can run, else with 6.
    """
    from omni_cli.checkpoints.build import cache_folder
    from omni_cli.config.loader import load_bundled, load_profile
    from omni_cli.measure.doctor import checkup, report

    facts = checkup.inspect_machine(cache_folder())
    if install:
        console.print_text("\n".join(checkup.install_commands(facts)))
        return ExitCode.OK
    problems = checkup.find_problems(facts)
    is_asked = profile is not None or model is not None
    profiles = [load_profile(choose_profile(profile, model), model=model)] if is_asked else load_bundled().values()
    verdicts = [checkup.judge_profile(config, facts, problems) for config in profiles]
    if as_json:
        console.print_json(report.document(facts, problems, verdicts))
    else:
        console.print_text(report.text(facts, problems, verdicts))
    blocked = any(verdict.missing for verdict in verdicts if is_asked or verdict.name in TINY_PROFILES)
    return ExitCode.RUN_FAILED if blocked else ExitCode.OK
