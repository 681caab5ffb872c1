"""`omni profile`: records where time and memory go in one stage or all."""

from __future__ import annotations

import sys

from omni_cli.cli.profile.options import ProfilingOptions
from omni_cli.cli.profile_choice import fetch_model
from omni_cli.core.errors import ExitCode


def profile(options: ProfilingOptions) -> ExitCode:
    """Record where time and memory go in a model or a stage.

    Writes a trace that opens in Perfetto and a record, and reports findings: how busy the device was, the slowest
    operators, copies, steps unlike the others, memory by phase, and how near the machine's limits each stage comes.
    Profiled and unprofiled iterations alternate, so that it also reports how much slower profiling makes them.
    """
    from omni_cli.engine.devices import check_devices

    _, config, workload = options.read(options.stage)
    check_devices(config)
    fetch_model(config, quiet=options.quiet)
    from omni_cli.cli.profile.run import run_profile

    return run_profile(config, workload, options, command=("omni", *sys.argv[1:]))
