"""From the outcomes of a window's requests to its metrics, its work, and one row per request."""

from __future__ import annotations

import itertools
import statistics
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omni_cli.loadtest.answers import ServerAnswer
from omni_cli.loadtest.client import Outcome
from omni_cli.loadtest.slo import SLO
from omni_cli.record import E2E, Failures, summed_failures
from omni_cli.stats.metrics import PERCENTILES, samples_for

Row = dict[str, float | None]
"""The values of one request. Times in seconds, from when it was due; None for unknown values."""

TIMES = (E2E, "ttft_s", "tpot_s", "ttfp_s", "rtf")
"""Values of a request whose median over the window is the metric of the same name."""

TAILS = (E2E, "ttft_s", "itl_s", "ttfp_s")
"""Values whose high percentiles are metrics as well, if the window has enough requests."""

_DIGITS = 7


@dataclass(frozen=True)
class Window:
    """`began_s` and `ended_s` are of `time.perf_counter`; `is_open`: requests had times at which they were due."""

    outcomes: tuple[Outcome, ...]
    began_s: float
    ended_s: float
    is_open: bool = False

    @property
    def lasted_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def answers(self) -> list[ServerAnswer]:
        return [outcome.answer for outcome in self.outcomes if outcome.answer is not None]

    @property
    def failures(self) -> dict[str, Failures]:
        """The failed requests by kind, the most frequent first."""
        failed = [outcome.failure for outcome in self.outcomes if outcome.failure is not None]
        return summed_failures((item.kind, Failures(count=1, first=item.message)) for item in failed)

    def rows(self) -> list[Row]:
        return [_row(outcome, self.began_s, is_open=self.is_open) for outcome in self.outcomes]


def columns(rows: Sequence[Row]) -> dict[str, tuple[float | None, ...]]:
    """Return the rows by value, without values that no request has."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    return {name: tuple(_rounded(row.get(name)) for row in rows) for name in names}


def window_metrics(window: Window, slos: Sequence[SLO]) -> dict[str, float]:
    """Compute medians over the answered requests, and rates of the whole window."""
    rows = window.rows()
    values = {name: [value for row in rows if (value := row.get(name)) is not None] for name in TIMES}
    values["itl_s"] = [gap for answer in window.answers for gap in _gaps(answer)]
    found: dict[str, float] = {}
    for name in (*TIMES[:3], "itl_s", *TIMES[3:]):
        if values[name] and name != E2E:
            found[name] = statistics.median(values[name])
        if name in TAILS:
            found |= _tails(name, values[name])
    return found | _rates(window, slos)


def median_e2e_s(window: Window) -> float:
    """Return the median over the answered requests, of which there must be at least one."""
    return statistics.median(o.done_s - o.due_s for o in window.outcomes if o.answer is not None)


def window_work(window: Window) -> dict[str, float]:
    """Return the work of a window, as far as the server reports it with every answer."""
    answers = window.answers
    work = {"requests": float(len(answers))}
    for name in ("input_tokens", "output_tokens"):
        counts = [getattr(answer, name) for answer in answers]
        if None not in counts:
            work[name] = float(sum(counts))
    audio_s = sum(answer.audio_s or 0.0 for answer in answers)
    if audio_s:
        work["audio_s"] = audio_s
    images = [image for answer in answers for image in answer.images]
    if images:
        work["pixels"] = float(sum(map(num_pixels, images)))
    return work


def num_pixels(png: bytes) -> int:
    """Read the number of pixels from the header; 0 for anything but a PNG."""
    if png[:8] != b"\x89PNG\r\n\x1a\n" or len(png) < 24:
        return 0
    width, height = struct.unpack(">II", png[16:24])
    return int(width * height)


def good_requests(rows: Sequence[Mapping[str, float | None]], slos: Sequence[SLO]) -> int:
    """Count the requests that were answered within all limits."""
    return sum(row.get(E2E) is not None and all(slo.is_met(row) for slo in slos) for row in rows)


def _row(outcome: Outcome, began_s: float, *, is_open: bool) -> Row:
    row: Row = {"start_s": outcome.due_s - began_s}
    if is_open:
        row["lag_s"] = max(0.0, outcome.sent_s - outcome.due_s)
    answer = outcome.answer
    if answer is None:
        return row
    e2e_s = row[E2E] = outcome.done_s - outcome.due_s
    if answer.text_at:
        row["ttft_s"] = answer.text_at[0] - outcome.due_s
    row["tpot_s"] = _tpot_s(answer)
    row["itl_max_s"] = max(_gaps(answer), default=None)
    if answer.audio_at is not None:
        row["ttfp_s"] = answer.audio_at - outcome.due_s
    if answer.audio_s:
        row |= {"rtf": e2e_s / answer.audio_s, "audio_s": answer.audio_s}
    return row | {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}


def _tpot_s(answer: ServerAnswer) -> float | None:
    """Return the seconds per token after the first; None if the server reports no number of tokens."""
    if not answer.text_at or answer.output_tokens is None:
        return None
    later_tokens = answer.output_tokens - answer.audio_tokens - 1
    return (answer.text_at[-1] - answer.text_at[0]) / later_tokens if later_tokens > 0 else None


def _gaps(answer: ServerAnswer) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(answer.text_at)]


def _tails(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name.removesuffix('_s')}_p{p}_s": statistics.quantiles(values, n=100)[p - 1]
        for p in PERCENTILES
        if len(values) >= samples_for(p)
    }


def _rates(window: Window, slos: Sequence[SLO]) -> dict[str, float]:
    work = window_work(window)
    found = {"requests_per_second": work["requests"] / window.lasted_s}
    if work.get("output_tokens"):
        found["output_tokens_per_second"] = work["output_tokens"] / window.lasted_s
    images = sum(len(answer.images) for answer in window.answers)
    if images:
        found["images_per_second"] = images / window.lasted_s
    if slos:
        good = good_requests(window.rows(), slos)
        found["goodput_per_second"] = good / window.lasted_s
        found["slo_attainment"] = good / len(window.outcomes)
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
