"""`--slo ttft:200ms`: the limits that a good request meets."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from omni_cli.errors import UsageError
from omni_cli.metrics import E2E, ITL_MAX, RTF, TPOT, TTFP, TTFT
from omni_cli.stats.saturation import PRECISION
from omni_cli.text import suggest, visible

# Option's name -> value of a request. A reader notices the longest gap, so `itl` limits that.
COLUMNS = {
    "ttft": TTFT, "tpot": TPOT, "itl": ITL_MAX, "e2e": E2E, "ttfp": TTFP, "rtf": RTF,
}  # fmt: skip
OF_TEXT, OF_AUDIO = ("ttft", "tpot", "itl"), ("ttfp", "rtf")
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|)")
_SHORTEST_WINDOW_S, _OTHER_WINDOW_S = 1.0, 4.0
_SCALES = {"ms": 1e-3, "s": 1.0, "": 1.0}


@dataclass(frozen=True)
class SLO:
    """`metric` is the option's name; `limit` is in seconds, for `rtf` a plain number."""

    metric: str
    limit: float


def row_limits(slos: Sequence[SLO]) -> dict[str, float]:
    """Return the limits by the names that values of a request have in records."""
    return {COLUMNS[slo.metric]: slo.limit for slo in slos}


def get_window(slos: Sequence[SLO]) -> float:
    """Return the seconds of a window by whose end the queue of a rate beyond the highest one exceeds the SLO.

    At a rate that is too high by `PRECISION`, the wait grows by that part of a second per second.
    """
    waits = [slo.limit for slo in slos if slo.metric in ("ttft", "ttfp", "e2e")]
    return max(_SHORTEST_WINDOW_S, max(waits, default=_OTHER_WINDOW_S * PRECISION) / PRECISION)


def parse_slos(texts: Sequence[str], metrics: Sequence[str]) -> tuple[SLO, ...]:
    """Parse `METRIC:LIMIT` texts; `metrics` are those that the measured requests have. Raises `UsageError`."""
    slos: dict[str, SLO] = {}
    for text in texts:
        slo = _parse(text, metrics)
        if slo.metric in slos:
            raise UsageError(f"`--slo {slo.metric}:...` is given twice", hint="write one limit per metric")
        slos[slo.metric] = slo
    return tuple(slos.values())


def _parse(text: str, metrics: Sequence[str]) -> SLO:
    metric, colon, limit = text.partition(":")
    shown = visible(text, 80)
    if not colon:
        raise UsageError(f"`--slo {shown}` is not METRIC:LIMIT", hint="for example `--slo ttft:200ms` or `--slo rtf:1`")
    if metric not in COLUMNS:
        hint = suggest(metric, list(COLUMNS)) or f"metrics are {', '.join(COLUMNS)}"
        raise UsageError(f"`--slo {shown}`: unknown metric `{visible(metric, 80)}`", hint=hint)
    if metric not in metrics:
        hint = f"these requests have {', '.join(metrics)}"
        raise UsageError(f"`--slo {shown}`: these requests have no {metric}", hint=hint)
    read = _LIMIT.fullmatch(limit)
    if read is None or (read[2] == "") != (metric == "rtf"):
        wanted = "a number without a unit" if metric == "rtf" else "a number with `ms` or `s`"
        example = "rtf:0.9" if metric == "rtf" else f"{metric}:200ms"
        raise UsageError(f"`--slo {shown}`: the limit is not {wanted}", hint=f"for example `--slo {example}`")
    value = float(read[1]) * _SCALES[read[2]]
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"`--slo {shown}`: no request can meet a limit of {limit}")
    return SLO(metric, value)
