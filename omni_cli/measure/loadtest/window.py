"""From the outcomes of a window's requests to its metrics, its work, and one row per request."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from omni_cli.core.errors import AnswerError
from omni_cli.measure.bench.listener import listen
from omni_cli.measure.bench.quality import Utterance
from omni_cli.measure.bench.slo import row_limits
from omni_cli.openai_api.client import Outcome, RequestFailure
from omni_cli.openai_api.reading import ServerAnswer
from omni_cli.records.metrics import (
    BACKLOG_GROWTH,
    E2E,
    HEARD,
    ITL,
    TTFP,
    TTFT,
    WORDS,
    Row,
    Timeline,
    columns,
    goodput,
    rates,
    summarise_values,
    time_gaps,
    values_by_metric,
    word_errors,
)
from omni_cli.records.record import Failures, summed_failures
from omni_cli.stats.saturation import PRECISION

_SHORTEST_WINDOW_S, _OTHER_WINDOW_S = 1.0, 4.0
TAILS = (E2E, TTFT, ITL, TTFP, HEARD)
"""Metrics whose high percentiles are metrics as well, if the window has enough requests."""
_DIGITS = 7
_FEW_FOR_TREND, _TREND_Z = 8, 2.33


def get_window(slos: Mapping[str, float]) -> float:
    """Return the seconds of a window by whose end the queue of a rate beyond the highest one exceeds the SLO.

    At a rate that is too high by `PRECISION`, the wait grows by that part of a second per second.
    """
    waits = [limit for metric, limit in slos.items() if metric in ("ttft", "ttfp", "heard", "e2e")]
    return max(_SHORTEST_WINDOW_S, max(waits, default=_OTHER_WINDOW_S * PRECISION) / PRECISION)


@dataclass(frozen=True)
class Window:
    """`began_s` and `ended_s` are of `time.perf_counter`.

    A closed loop has `clients`. In an open loop, the requests have times at which they were due, within `offered_s`
    seconds; None if that is at once. `unanswered_s` are the times for which requests had waited when an interrupt cut
    the window; None for a whole one.
    """

    outcomes: tuple[Outcome, ...]
    began_s: float
    ended_s: float
    clients: int | None = None
    offered_s: float | None = None
    unanswered_s: tuple[float, ...] | None = None

    @property
    def span_s(self) -> float:
        """The seconds that rates are over.

        Of a closed loop, the sum of all times from sending to the end of the answer over the number of clients
        (Little's law): in it, clients that are never idle get these answers, whatever happens at the window's edges.
        Of an open loop, the time in which the requests arrive, and what the answers fall behind in it. Of requests
        that are sent at once, the time to the last answer.

        Where an interrupt cut the window, a closed loop's requests in flight count by the share of the mean time that
        they have had, and an open loop's as if they were served, unless they have waited longer than any answer took.
        """
        times, waits = self._times_s, self.unanswered_s or ()
        if self.clients is not None:
            return (sum(times) + sum(waits)) / self.clients * self._answered_share
        if self.offered_s is not None:
            served = len(times) + sum(wait_s <= max(times) for wait_s in waits)
            return self.offered_s * (1 + self.backlog_growth) * len(times) / served
        return self.ended_s - self.began_s

    def get_part(self, seconds: float) -> float:
        """Return the part that the answers of the window have of what a server did in the `seconds` around it.

        Other requests are in flight at the edges of a closed loop's window, and where an interrupt cut one.
        """
        return self._answered_share if self.clients is None else self.span_s / seconds

    @property
    def _times_s(self) -> list[float]:
        return [outcome.done_s - outcome.due_s for outcome in self.outcomes]

    @property
    def _answered_share(self) -> float:
        """The answered requests over those and the unanswered ones, by the share of the mean time that they had."""
        times = self._times_s
        shares = sum(min(1.0, wait_s * len(times) / sum(times)) for wait_s in self.unanswered_s or ())
        return len(times) / (len(times) + shares)

    @property
    def backlog_growth(self) -> float:
        """The seconds that answers of an open loop fall behind per second of arrivals; 0 where no trend is shown.

        A trend is a rank correlation of arrival and latency that chance has in 1 of 100 windows; its slope is that
        between the medians of the first and the last third.
        """
        answered = sorted((o.due_s, o.ended_s - o.due_s) for o in self.outcomes if o.answer is not None)
        count, third = len(answered), len(answered) // 3
        if count < _FEW_FOR_TREND or answered[0][0] == answered[-1][0]:
            return 0.0
        order = sorted(range(count), key=lambda place: answered[place][1])
        distance = sum((place - rank) ** 2 for rank, place in enumerate(order))
        correlation = 1 - 6 * distance / (count * (count**2 - 1))
        if correlation * math.sqrt(count - 1) < _TREND_Z:
            return 0.0
        (early_s, first_s), (late_s, last_s) = (
            (statistics.median(due_s for due_s, _ in part), statistics.median(time_s for _, time_s in part))
            for part in (answered[:third], answered[-third:])
        )
        return max(0.0, (last_s - first_s) / (late_s - early_s))

    @property
    def answers(self) -> list[ServerAnswer]:
        return [outcome.answer for outcome in self.outcomes if outcome.answer is not None]

    @property
    def failures(self) -> dict[str, Failures]:
        """The failed requests by kind, the most frequent first."""
        failed = [outcome.failure for outcome in self.outcomes if outcome.failure is not None]
        return summed_failures((item.kind, Failures(count=1, first=item.message)) for item in failed)

    def rows(self) -> list[Row]:
        """Return the values of each request, with its start in the window, its lag and its amounts of work."""
        return [_row(outcome, self.began_s, is_open=self.clients is None) for outcome in self.outcomes]

    def columns(self) -> dict[str, tuple[float | None, ...]]:
        """Return the rows as columns of rounded values."""
        rounded = [
            {name: None if value is None else round(value, _DIGITS) for name, value in row.items()}
            for row in self.rows()
        ]
        return columns(rounded)


def window_metrics(window: Window, slos: Mapping[str, float]) -> dict[str, float]:
    """Compute medians over the answered requests, that of `e2e_s` first, and rates of the whole window."""
    timelines = [_timeline(outcome, outcome.answer) for outcome in window.outcomes if outcome.answer is not None]
    work = window_work(window)
    num_images = sum(len(answer.images) for answer in window.answers)
    optional = {"output_tokens": work.get("output_tokens"), "images": num_images}
    amounts = {"requests": work["requests"]} | {name: amount for name, amount in optional.items() if amount}
    return {
        **summarise_values(values_by_metric(timelines), TAILS),
        **word_errors(window.rows()),
        **rates(amounts, window.span_s),
        **goodput(window.rows(), row_limits(slos), window.span_s),
        **({} if window.offered_s is None else {BACKLOG_GROWTH: window.backlog_growth}),
    }


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
    words = sum(answer.word_errors.get(WORDS, 0.0) for answer in answers)
    if words:
        work[WORDS] = words
    pixels = [num_pixels(image) for answer in answers for image in answer.images]
    if pixels and None not in pixels:
        work["pixels"] = float(sum(filter(None, pixels)))
    return work


def num_pixels(image: bytes) -> int | None:
    """Read the number of pixels from the header; None if it is in none of OpenAI's formats."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(image), formats=("PNG", "JPEG", "WEBP")) as opened:
            return opened.width * opened.height
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError):
        return None


def _timeline(outcome: Outcome, answer: ServerAnswer) -> Timeline:
    """Return the times of an answer. Tokens that became sound are not counted."""
    sound, times = answer.sound, [choice.at for choice in answer.streams]
    return Timeline(
        start_s=outcome.due_s,
        end_s=outcome.ended_s,
        first_token_s=answer.first_at,
        streaming_s=sum(at[-1] - at[0] for at in times),
        gaps_s=[gap for at in times for gap in time_gaps(at)],
        later_tokens=answer.later_tokens if answer.num_chunks > len(times) else None,
        first_audio_s=answer.first_audio_s,
        audio_s=answer.audio_s or 0.0,
        heard={} if sound is None else listen(sound.samples, sound.sample_rate, sound.arrivals, outcome.due_s),
    )


def check_sound(outcome: Outcome) -> Outcome:
    """Read the sound of an answer, outside of the event loop; one that cannot be read is a failed request."""
    try:
        _ = outcome.answer and outcome.answer.sound
    except AnswerError as error:
        return replace(outcome, answer=None, failure=RequestFailure(error.kind, str(error)))
    return outcome


def _row(outcome: Outcome, began_s: float, *, is_open: bool) -> Row:
    row: Row = {"start_s": outcome.due_s - began_s, **outcome.asked}
    if is_open:
        row["lag_s"] = max(0.0, outcome.sent_s - outcome.due_s)
    answer = outcome.answer
    if answer is None:
        return row
    row |= _timeline(outcome, answer).row()
    return row | {
        **answer.word_errors,
        "audio_s": answer.audio_s,
        "is_rate_assumed": 1.0 if answer.sound is not None and answer.sound.is_rate_assumed else None,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "chunks": answer.num_chunks or None,
        "hidden_tokens": answer.hidden_tokens or None,
        "first_tokens": answer.first_tokens,
        # Of speech; the length of a text is a setting.
        "is_cut": None if answer.text or answer.finish_reason is None else answer.finish_reason == "length",
    }


def get_utterance(answer: ServerAnswer) -> Utterance:
    """Return what an answer says and should say: a transcript the reference, speech its request's text, and that of a
    chat its own. Speech without sound has no words."""
    text, sound = "".join(answer.content), answer.sound
    said = (sound.samples, sound.sample_rate) if sound else text if answer.sent_sound_s is not None else ""
    return text if answer.expected is None else answer.expected, said
