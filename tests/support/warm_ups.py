"""Reports of the warm-up requests of a profile's stages, run in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.loader import load_profile
from support.stage_specs import load


def answer(profile: str) -> dict[str, Any]:
    """Return, per stage on vLLM, the reports' types, those with at most two requests at once, and whether work is left.

    A diffusion stage runs the same requests both times.
    """
    config = load_profile(profile, ())
    found = {}
    for given in config.stages:
        if given.backend == "vllm":
            stage = load(given, resolve_model(config.model))
            reports: list[Any] = []
            step = stage.step

            def keep(step=step, reports=reports):
                new = step()
                reports.extend(new)
                return new

            stage.step = keep
            stage.run_warm_up()
            of_any = [type(report).__name__ for report in reports]
            reports.clear()
            stage.spec = replace(stage.spec, max_concurrency=2)
            stage.run_warm_up()
            found[given.name] = [of_any, [type(report).__name__ for report in reports], stage.has_work()]
            stage.close()
    return found
