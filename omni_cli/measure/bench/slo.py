"""Limits on the values of requests: `--slo ttft:200ms` and the like, which a good request meets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from omni_cli.core.errors import UsageError
from omni_cli.core.text import suggest, visible
from omni_cli.records.metrics import (
    E2E,
    ITL_MAX,
    METRICS,
    RESOLUTION,
    SPEECH,
    TPOT,
    TTFT,
    WORD_ERRORS,
    Row,
    find_idle_limit,
)  # fmt: skip

OF_TEXT, OF_AUDIO = ("ttft", "tpot", "itl"), tuple(name.removesuffix("_s") for name in SPEECH)
OF_WORDS = WORD_ERRORS[:2]
"""Those of answers whose words somebody compares with their text."""
# Option's name -> value of a request. A reader notices the longest gap, so `itl` limits that.
COLUMNS = {"ttft": TTFT, "tpot": TPOT, "itl": ITL_MAX, "e2e": E2E, **dict(zip(OF_AUDIO, SPEECH, strict=True))}
COLUMNS |= dict(zip(OF_WORDS, OF_WORDS, strict=True))
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|%|)")
_SCALES = {"ms": 1e-3, "s": 1.0, "%": 1e-2, "": 1.0}


def row_limits(slos: Mapping[str, float]) -> dict[str, float]:
    """Return the limits by the names that values of a request have in records."""
    return {COLUMNS[metric]: limit for metric, limit in slos.items()}


def check_limits_apply(rows: Sequence[Row], limits: Mapping[str, float], what: str) -> None:
    """Raise `UsageError` for a limit on a metric (its name in records) that no answer of `rows` has."""
    if idle := find_idle_limit(rows, limits):
        name = next(name for name, column in COLUMNS.items() if column == idle)
        hint = "omit it, or ask for answers that have it: a time between tokens needs two"
        raise UsageError(f"`--slo {name}:...` limits nothing: no answer of {what} has a {name}", hint=hint)


def parse_slos(texts: Sequence[str], metrics: Sequence[str]) -> dict[str, float]:
    """Parse `METRIC:LIMIT` texts; `metrics` are those that the measured requests have. Raises `UsageError`.

    Limits are in seconds; those of `rtf`, `underruns` and the like are plain numbers.
    """
    slos: dict[str, float] = {}
    for text in texts:
        metric, limit = _parse(text, metrics)
        if metric in slos:
            raise UsageError(f"`--slo {metric}:...` is given twice", hint="write one limit per metric")
        slos[metric] = limit
    return slos


def _parse(text: str, metrics: Sequence[str]) -> tuple[str, float]:
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
    is_plain, is_share = metric in METRICS, metric in WORD_ERRORS  # times are limited without the `_s` of their names
    units = ("%", "") if is_share else ("",) if is_plain else ("ms", "s")
    if read is None or read[2] not in units:
        wanted = "a share" if is_share else "a number without a unit" if is_plain else "a number with `ms` or `s`"
        example = f"{metric}:10%" if is_share else "rtf:0.9" if is_plain else f"{metric}:200ms"
        raise UsageError(f"`--slo {shown}`: the limit is not {wanted}", hint=f"for example `--slo {example}`")
    value = float(read[1]) * _SCALES[read[2]]
    if not (math.isfinite(value) and (value > 0 or COLUMNS[metric] in RESOLUTION)):
        raise UsageError(f"`--slo {shown}`: no request can meet a limit of {limit}")
    return metric, value
