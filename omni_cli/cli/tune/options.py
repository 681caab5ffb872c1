"""The options of `omni tune`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omni_cli.cli.bench.options import StageOption, WorkloadOptions
from omni_cli.cli.options import OutputDirOption, TimeoutOption, WaitOption, option, seconds_option
from omni_cli.core.errors import UsageError
from omni_cli.core.text import visible

DEFAULT_MARGIN = "5%"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB|)")
_UNITS = {"": 1, "B": 1, **{f"{p}iB": 2 ** (10 * n) for n, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}B": 10 ** (3 * n) for n, p in enumerate("KMGT", 1)}

OBJECTIVES = {
    "e2e": "e2e_s",
    "tokens_per_second": "output_tokens_per_second",
    "images_per_second": "images_per_second",
    "goodput": "goodput_per_second",
}


@dataclass(frozen=True, kw_only=True)
class TuneOptions(WorkloadOptions):
    """The settings to search, what they are judged by, and their limits."""

    search: list[str] | None = option(
        "--search KEY=A,B",
        "Values of a profile key, or of an environment variable as `env.NAME`; `KEY=1..16` is a range. All "
        "combinations are settings. Repeatable. Default: keys that suit the stages and this machine.",
    )
    url: str | None = option(
        "--url URL",
        "Search the load of a running server instead: `--search concurrency=1..16` or `request_rate=1,2,4`, "
        "sent as by `omni loadtest`.",
    )
    wait: WaitOption = None
    endpoint: Literal["chat", "speech", "images"] | None = option(
        "--endpoint", "The endpoint of `--url` to call. Default: chat."
    )
    stage: StageOption = "all"
    objective: Literal["e2e", "tokens_per_second", "images_per_second", "goodput"] = option(
        "--objective", "The best setting has the shortest time, or the highest rate.", default="e2e"
    )
    slo: list[str] | None = option(
        "--slo METRIC:LIMIT",
        "Limit on each request, such as `ttft:200ms`: what goodput counts, and otherwise a limit that 99 % of a "
        "setting's requests have to meet. Metrics are ttft, tpot, itl, e2e, ttfp, heard, stutter, "
        "underruns, longest_gap and rtf. Repeatable.",
    )
    max_memory: str | None = option(
        "--max-memory SIZE", "Limit on the peak memory of a setting, such as 20GiB: device, else host."
    )
    quality: list[str] | None = option(
        "--quality METRIC>=LIMIT",
        "Limit on how far outputs may differ from those of the profile as it is, such as psnr_db>=40. Repeatable.",
    )
    margin: str = option(
        "--margin PERCENT", "The answer may be worse than the best setting by this much.", default=DEFAULT_MARGIN
    )
    num_iters: int | None = option(
        "--num-iters N", "Iterations per start of a setting. Default: as long as loading.", min=1
    )
    num_iters_warmup: int = option(
        "--num-iters-warmup N", "Warm-up iterations per start, not counted; at least 1 is run.", default=3, min=0
    )
    time_budget: float | None = seconds_option(
        "--time-budget SECONDS",
        "Start no round after this time, loading included. Default: until the answer is known.",
    )
    output_dir: OutputDirOption = Path("tuned")
    timeout: TimeoutOption = None

    def max_memory_bytes(self) -> int | None:
        """Parse `--max-memory`. Raises `UsageError`."""
        if self.max_memory is None:
            return None
        size = _SIZE.fullmatch(self.max_memory.strip())
        if size is None or not float(size[1]) > 0:
            message = f"invalid value for `--max-memory`: `{visible(self.max_memory, 80)}` is not a size"
            raise UsageError(message, hint="for example `--max-memory 20GiB`")
        return int(float(size[1]) * _UNITS[size[2]])
