"""`omni doctor`: what this machine can run, and the commands that install what is missing."""

from __future__ import annotations

from omni_cli.cli.options import JsonOption, VerboseOption
from omni_cli.cli.terminal import console
from omni_cli.errors import ExitCode

TINY_PROFILES = frozenset({"tiny-omni", "tiny-image"})


def doctor(as_json: JsonOption = False, verbose: VerboseOption = False) -> int:
    """Show what this machine can run: Python, torch, vLLM, diffusers, devices, memory, and what is missing.

    Exits with 0 if the profiles that need no download can run, else with 6.
    """
    from omni_cli.checkpoints.resolve import cache_folder
    from omni_cli.config.bundled import bundled_profiles
    from omni_cli.config.loader import load_profile
    from omni_cli.doctor import checkup, report

    facts = checkup.look(cache_folder())
    problems = checkup.find_problems(facts)
    profiles = [load_profile(name) for name in bundled_profiles()]
    verdicts = [checkup.judge(profile, facts, problems) for profile in profiles]
    if as_json:
        console.print_json(report.document(facts, problems, verdicts))
    else:
        console.print_text(report.text(facts, problems, verdicts))
    blocked = any(verdict.missing for verdict in verdicts if verdict.name in TINY_PROFILES)
    return ExitCode.RUN_FAILED if blocked else ExitCode.OK
