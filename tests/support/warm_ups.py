"""Runs the warm-up requests of a profile's stages in this process; a script: vLLM binds its process.

The profile's name is in argv. Prints, as JSON, per AR stage the reports' types, those with at most two requests at
once, and whether something is left to do; per diffusion stage the same of its own requests, twice.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any


def main() -> None:
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    from stage_specs import get_spec

    from omni_cli.checkpoints.resolve import resolve_model
    from omni_cli.config.loader import load_profile
    from omni_cli.engine.process.stage_process import load_stage

    config = load_profile(sys.argv[1], ())
    found = {}
    for given in config.stages:
        if given.backend == "vllm":
            stage: Any = load_stage(get_spec(given, resolve_model(config.model)), lambda report: None)
            reports: list[Any] = []
            step = stage.step

            def kept(step=step, reports=reports):
                new = step()
                reports.extend(new)
                return new

            stage.step = kept
            stage.run_warm_up()
            of_any = [type(report).__name__ for report in reports]
            reports.clear()
            stage.spec = replace(stage.spec, max_concurrency=2)
            stage.run_warm_up()
            found[given.name] = [of_any, [type(report).__name__ for report in reports], stage.has_work()]
            stage.close()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
