"""`omni profile`: records where time and memory go in one stage or all."""

from __future__ import annotations

import sys
from dataclasses import replace

from omni_cli.cli.download import fetch_model
from omni_cli.cli.profile.options import ProfilingOptions
from omni_cli.cli.profile_choice import profile_source
from omni_cli.core.errors import ExitCode


def profile(options: ProfilingOptions) -> ExitCode:
    """Record where time and memory go in a model or a stage.

    Writes a trace that opens in Perfetto and a record, and reports findings: how busy the device was, the slowest
    operators, copies, steps unlike the others, memory by phase, and how near the machine's limits each stage comes.
    Profiled and unprofiled iterations alternate, so that it also reports how much slower profiling makes them.
    """
    from omni_cli.engine.devices import check_devices
    from omni_cli.measure.bench.workload import lengths_given_by, measured_stages

    source = profile_source(options)
    config = source.load()
    measured_stages(config, options.stage)
    workload = replace(options.workload(options.stage, config), given_lengths=lengths_given_by(source.overrides))
    check_devices(config)
    fetch_model(config, quiet=options.quiet)
    from omni_cli.cli.profile.run import run_profile

    return run_profile(config, workload, options, command=("omni", *sys.argv[1:]))
