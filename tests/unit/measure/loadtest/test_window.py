"""From the outcomes of a window to its metrics: definitions, and the effect of failed requests."""

from __future__ import annotations

import io
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.bench_records import record

from omni_cli.measure.loadtest.window import Window, check_sound, num_pixels, window_metrics, window_work
from omni_cli.openai_api.choices import AnswerChoice
from omni_cli.openai_api.client import Outcome, RequestFailure
from omni_cli.openai_api.reading import ServerAnswer, SpeechReader
from omni_cli.openai_api.sound import SAMPLE_RATE
from omni_cli.records.metrics import E2E, ITL_MAX, SPEECH, TPOT, TTFT, find_idle_limit, goodput
from omni_cli.records.record import Failures, Sample, Variant
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.stats.comparable import disturbances, is_slowed

BEGAN = 100.0


def outcome(due: float, done: float, text_at: list[float] = [], **answer: Any) -> Outcome:  # noqa: B006 - only read
    shifted = [BEGAN + time for time in text_at]
    if "audio_at" in answer:
        answer["audio_at"] += BEGAN
    sizes = answer.pop("sizes", [1] * len(shifted))
    choices = {0: AnswerChoice(shifted, sizes)} if shifted else {}
    read = ServerAnswer(first_at=shifted[0] if shifted else None, choices=choices, text=["x"], **answer)
    return Outcome(BEGAN + due, BEGAN + due, BEGAN + done, read)


def failed(due: float, done: float, kind: str, message: str = "no") -> Outcome:
    return Outcome(BEGAN + due, BEGAN + due, BEGAN + done, failure=RequestFailure(kind, message))


def window(*outcomes: Outcome, clients: int | None = 1, offered_s: float | None = None) -> Window:
    ended_s = max((outcome.done_s for outcome in outcomes), default=BEGAN)
    return Window(outcomes, BEGAN, ended_s, clients, offered_s)


def test_one_request() -> None:
    times = [1.2, 1.3, 1.5, 1.6, 1.8]
    found = window_metrics(window(outcome(1.0, 2.0, times, input_tokens=7, output_tokens=5)), {})
    assert found == pytest.approx({
        "e2e_s": 1.0, "ttft_s": 0.2, "tpot_s": 0.6 / 4, "itl_s": 0.15, "requests_per_second": 1.0,
        "output_tokens_per_second": 5.0,
    })  # fmt: skip


def test_tokens_that_became_sound_are_no_text() -> None:
    sound = bytearray(2 * SAMPLE_RATE)
    answer = outcome(0.0, 3.0, [1.0, 1.2, 1.4], output_tokens=103, audio_tokens=100, pcm=sound, audio_at=1.5)
    found = window_metrics(window(answer), {})
    assert found["tpot_s"] == pytest.approx(0.2) and found["ttfp_s"] == pytest.approx(1.5)
    assert found["rtf"] == pytest.approx(3.0)
    assert found["output_tokens_per_second"] == pytest.approx(103 / 3)
    assert window_work(window(answer)) == {"requests": 1, "output_tokens": 103, "audio_s": 1.0}


@pytest.mark.parametrize(
    ("answer", "tpot_s"),
    [
        ({"first_tokens": 4}, 0.9 / 6),  # told by the first chunk's usage
        ({"sizes": [30, 20]}, 0.9 / 4),  # by the share of the characters
        ({"sizes": [30, 20], "audio_tokens": 5}, 0.9 / 2),
    ],
)
def test_a_chunk_may_contain_several_tokens(answer: dict[str, Any], tpot_s: float) -> None:
    found = window_metrics(window(outcome(0.0, 2.0, [1.0, 1.9], output_tokens=10, **answer)), {})
    assert found["tpot_s"] == pytest.approx(tpot_s)


def test_a_single_chunk_has_no_time_per_token() -> None:
    row = window(outcome(0.0, 2.0, [1.0], output_tokens=10)).rows()[0]
    assert row["tpot_s"] is None and row["itl_max_s"] is None and row["chunks"] == 1


def test_several_answers_of_a_request_are_timed_by_themselves() -> None:
    """Their chunks alternate; the time per token is over the tokens after the first chunk of each."""
    choices = {0: AnswerChoice([BEGAN + 1.0, BEGAN + 1.4], [5, 5]), 1: AnswerChoice([BEGAN + 1.1, BEGAN + 1.3], [5, 5])}
    read = ServerAnswer(first_at=BEGAN + 1.0, last_at=BEGAN + 1.4, choices=choices, output_tokens=8)
    row = window(Outcome(BEGAN, BEGAN, BEGAN + 3.0, read)).rows()[0]
    assert row["tpot_s"] == pytest.approx((0.4 + 0.2) / 4) and row["itl_max_s"] == pytest.approx(0.4)
    assert row["ttft_s"] == pytest.approx(1.0) and row["e2e_s"] == pytest.approx(1.4), "not the end of the stream"


def test_rates_of_a_closed_loop_are_those_of_clients_that_are_never_idle() -> None:
    """One of 16 answers is late, and no other client waits for it."""
    outcomes = [outcome(0.0, 1.0) for _ in range(15)] + [outcome(0.0, 9.0)]
    assert window_metrics(window(*outcomes, clients=4), {})["requests_per_second"] == pytest.approx(16 / (24 / 4))


@pytest.mark.parametrize(("behind", "rate"), [(0.0, 8.0), (1.0, 4.0), (0.25, 6.4)])
def test_rates_of_an_open_loop_are_those_of_the_arrivals_that_are_served(behind: float, rate: float) -> None:
    """Each answer takes 4 s, and `behind` more for each second in which requests arrived before it."""
    outcomes = [outcome(due, due + 4.0 + behind * due) for due in (number / 8 for number in range(32))]
    found = window_metrics(window(*outcomes, clients=None, offered_s=4.0), {})
    assert found["backlog_growth"] == pytest.approx(behind, abs=1e-9)
    assert found["requests_per_second"] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("waits", "rate"),
    [((0.5, 0.25), 4.0), ((), 4.0), ((1.0, 9.0), 4 * 18 / 26)],  # at most one answer each, however long they wait
)
def test_a_cut_window_of_a_closed_loop_counts_what_its_requests_in_flight_have_had(
    waits: tuple[float, ...], rate: float
) -> None:
    outcomes = [outcome(number / 4, number / 4 + 1.0) for number in range(16)]
    cut = replace(window(*outcomes, clients=4), unanswered_s=waits)
    assert window_metrics(cut, {})["requests_per_second"] == pytest.approx(rate)


def test_a_cut_window_of_an_open_loop_serves_what_is_in_flight_unless_it_hangs() -> None:
    """8 requests per second for 4 s, each of which takes 1 s; and the same where half of them are never answered."""
    outcomes = [outcome(number / 8, number / 8 + 1.0) for number in range(24)]
    cut = replace(window(*outcomes, clients=None, offered_s=4.0), unanswered_s=tuple(n / 8 for n in range(1, 9)))
    assert window_metrics(cut, {})["requests_per_second"] == pytest.approx(8.0)
    hung = replace(cut, outcomes=tuple(outcomes[:12]), unanswered_s=tuple(n / 8 for n in range(1, 21)))
    assert window_metrics(hung, {})["requests_per_second"] == pytest.approx((12 + 8) / 4)


def test_a_backlog_needs_a_trend() -> None:
    """Latencies without a trend over the arrivals are noise."""
    times = [4.0 + (number * 7 % 13) / 10 for number in range(32)]
    outcomes = [outcome(number / 8, number / 8 + time) for number, time in enumerate(times)]
    assert window(*outcomes, clients=None, offered_s=4.0).backlog_growth == 0


def test_a_limit_on_what_no_answer_has_is_found() -> None:
    rows = window(outcome(0.0, 1.0, [1.0], output_tokens=1), failed(0, 1, "timeout")).rows()
    assert find_idle_limit(rows, [TTFT, TPOT]) == TPOT and find_idle_limit(rows, [TTFT]) is None
    assert find_idle_limit(window(failed(0, 1, "timeout")).rows(), [TTFT]) is None


def test_without_usage_token_metrics_are_left_out() -> None:
    one = window(outcome(0.0, 1.0, [0.5, 0.6]))
    assert set(window_metrics(one, {})) == {"e2e_s", "ttft_s", "itl_s", "requests_per_second"}
    assert window_work(one) == {"requests": 1}


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.floats(0.001, 1), st.lists(st.floats(0.001, 1), min_size=2, max_size=30)),
        min_size=1, max_size=60,
    )
)  # fmt: skip
def test_medians_are_those_of_the_requests(drawn: list[tuple[float, float, list[float]]]) -> None:
    outcomes = []
    for due, first, gaps in drawn:
        times = [due + first]
        for gap in gaps:
            times.append(times[-1] + gap)
        outcomes.append(outcome(due, times[-1], times, output_tokens=len(times)))
    found = window_metrics(window(*outcomes), {})
    assert found["ttft_s"] == pytest.approx(statistics.median(first for _, first, _ in drawn), abs=1e-6)
    assert found["tpot_s"] == pytest.approx(statistics.median(statistics.fmean(gaps) for *_, gaps in drawn), abs=1e-6)
    assert found["itl_s"] == pytest.approx(statistics.median(gap for *_, gaps in drawn for gap in gaps), abs=1e-6)
    # First token and all gaps are the whole time.
    rows = window(*outcomes).rows()
    for row, (_, _, gaps) in zip(rows, drawn, strict=True):
        assert row["ttft_s"] + row["tpot_s"] * len(gaps) == pytest.approx(row["e2e_s"], abs=1e-6)
        assert row["itl_max_s"] == pytest.approx(max(gaps), abs=1e-6)
    assert ("ttft_p90_s" in found) == (len(drawn) >= 44)


@given(st.lists(st.one_of(st.none(), st.floats(0.01, 2)), min_size=1, max_size=30), st.floats(0.01, 2))
def test_goodput_counts_failed_requests_as_not_good(times: list[float | None], limit: float) -> None:
    outcomes = [failed(0, 1, "timeout") if time is None else outcome(0, time, [time]) for time in times]
    found = window_metrics(replace(window(*outcomes, clients=None), ended_s=BEGAN + 4.0), {"e2e": limit})
    good = sum(time is not None and BEGAN + time - BEGAN <= limit for time in times)
    assert found["slo_attainment"] == good / len(times)
    assert found["goodput_per_second"] == good / 4.0
    assert found["requests_per_second"] == sum(time is not None for time in times) / 4.0 >= found["goodput_per_second"]


def test_every_limit_has_to_be_kept() -> None:
    rows = [{"e2e_s": 1.0, "ttft_s": 0.1}, {"e2e_s": 1.0, "ttft_s": 0.3}, {"e2e_s": 3.0, "ttft_s": 0.1}, {}]
    assert goodput(rows, {TTFT: 0.2, E2E: 2.0}, 10.0) == {"goodput_per_second": 0.1, "slo_attainment": 1 / 4}
    assert goodput(rows, {TTFT: 0.2}, 10.0) == {"goodput_per_second": 0.2, "slo_attainment": 2 / 4}


def test_the_limit_itself_is_kept_and_does_not_apply_to_a_missing_value() -> None:
    gaps = [{E2E: 1.0, ITL_MAX: 0.1}, {E2E: 1.0, ITL_MAX: 0.1000001}, {E2E: 1.0, ITL_MAX: None}, {E2E: 1.0, TTFT: 0.01}]
    assert [goodput([row], {ITL_MAX: 0.1}, 1.0)["slo_attainment"] for row in gaps] == [1, 0, 1, 1]


def test_failures_are_counted_by_kind_with_the_first_message() -> None:
    mixed = window(
        outcome(0, 1, [0.5]), failed(0, 1, "HTTP 429 queue_full", "64 are inside"), failed(0, 1, "timeout", "late"),
        failed(0, 1, "HTTP 429 queue_full", "65 are inside"),
    )  # fmt: skip
    assert mixed.failures == {
        "HTTP 429 queue_full": Failures(count=2, first="64 are inside"), "timeout": Failures(count=1, first="late"),
    }  # fmt: skip
    assert list(mixed.failures) == ["HTTP 429 queue_full", "timeout"]
    table = mixed.columns()
    assert table["e2e_s"] == (1.0, None, None, None) and table["start_s"] == (0, 0, 0, 0)
    assert window_work(mixed)["requests"] == 1


def test_only_an_open_loop_has_a_lag() -> None:
    late = Outcome(BEGAN, BEGAN + 0.25, BEGAN + 1, ServerAnswer())
    assert window(late, clients=None).columns()["lag_s"] == (0.25,)
    assert "lag_s" not in window(late).columns()
    assert window(late).columns()["e2e_s"] == (1.0,)


def test_pixels_by_the_header() -> None:
    for image_format in ("PNG", "JPEG", "WEBP"):
        Image.new("RGB", (256, 64)).save(file := io.BytesIO(), image_format)
        assert num_pixels(file.getvalue()) == 256 * 64
    assert num_pixels(b"JFIF") is None


@pytest.mark.parametrize(
    ("answer", "is_cut"), [({"finish_reason": "length"}, 1), ({"finish_reason": "stop"}, 0), ({}, None)]
)
def test_speech_that_is_cut_is_in_its_row(answer: dict[str, Any], is_cut: int | None) -> None:
    spoken = Outcome(BEGAN, BEGAN, BEGAN + 1, ServerAnswer(pcm=bytearray(2 * SAMPLE_RATE), **answer))
    assert window(spoken, failed(0, 1, "timeout")).columns().get("is_cut") == (
        None if is_cut is None else (is_cut, None)
    )
    # The length of a text is a setting.
    assert "is_cut" not in window(outcome(0, 1, [0.5], finish_reason="length")).columns()


def spoken(due: float, arrivals: list[tuple[float, bytes]], content_type: str = "") -> Outcome:
    reader = SpeechReader()
    reader.answer.content_type = content_type
    for at_s, data in arrivals:
        reader.feed(data, BEGAN + at_s)
    return Outcome(BEGAN + due, BEGAN + due, BEGAN + arrivals[-1][0], reader.answer)


def test_a_listener_hears_what_is_played_and_waits_for_the_rest() -> None:
    """0.4 s of silence at once, a voice in time, and its second half too late; at 48 kHz in stereo."""
    silence, voice = bytes(4 * 19_200), b"\x00\x20" * 2 * 24_000
    outcome = spoken(1.0, [(1.1, silence), (1.3, voice), (2.3, voice)], "audio/pcm;rate=48000;channels=2")
    (row,) = window(outcome).rows()
    assert {name: row[name] for name in SPEECH} == pytest.approx({
        "ttfp_s": 0.1, "heard_s": 0.5, "stutter_s": 0.3, "underruns": 1, "longest_gap_s": 1.0, "rtf": 1.3 / 1.4,
    })  # fmt: skip
    assert row["audio_s"] == pytest.approx(1.4) and row["is_rate_assumed"] is None
    found = window_metrics(window(outcome, spoken(0.0, [(0.5, voice)])), {"underruns": 0, "heard": 0.5})
    assert (found["underruns"], found["slo_attainment"]) == (0.5, 0.5), "the mean, not the median"


def test_a_sound_that_cannot_be_read_is_a_failure() -> None:
    good, bad = spoken(0.0, [(0.1, b"\x00\x20" * 99)]), spoken(0.0, [(0.1, b"RIFF\0\0\0\0WAVEfmt ")])
    assert check_sound(good) is good and check_sound(failed(0, 1, "timeout")).failure is not None
    failure = check_sound(bad).failure
    assert failure is not None and (failure.kind, failure.message) == (
        "invalid answer", "a sound that cannot be read: its WAV header is not complete",
    )  # fmt: skip


def test_an_assumed_rate_is_warned_of() -> None:
    answers = window(*(spoken(0.0, [(0.1, b"\x00\x20" * 99)], kind) for kind in ("", "audio/pcm;rate=8000")))
    sample = Sample(block=0, position=0, e2e_s=0.1, requests=answers.columns())
    made = record(Variant(name="a", samples=(sample,)), kind="server")
    (found,) = disturbances(made)
    assert (found.kind, found.share, found.variant) == ("assumed rate", 0.5, "a") and not is_slowed(made)
    (note,) = disturbance_warnings((found,), made)
    assert "24 kHz" in note.message and note.hint is not None and "--sample-rate" in note.hint
