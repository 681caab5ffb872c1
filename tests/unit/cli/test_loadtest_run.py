"""`omni loadtest` against a server with known answers: real HTTP, no model."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from support.chat_server import ChatServer
from support.planned_server import Plan, PlannedServer

from omni_cli.cli.app import run
from omni_cli.records.record import Record, Sample, load_record
from omni_cli.stats.blocks import request_values

pytestmark = pytest.mark.slow


LoadTest = Callable[..., tuple[int, str, str]]


@pytest.fixture
def loadtest(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoadTest:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        words = ["loadtest", *arguments]
        monkeypatch.setattr("sys.argv", ["omni", *words])
        code = run(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


SHORT = ("--num-iters", "2", "--num-iters-warmup", "1", "--num-requests", "4", "--output-json", "r.json")


def window_bodies(server: PlannedServer) -> list[dict[str, Any]]:
    """The requests without canaries, whose answers are short and whose prompts nobody has seen, or those of the run."""
    return [body for body in server.bodies if body.get("max_completion_tokens") != 4]


def new_prompts(server: PlannedServer) -> list[bool]:
    return [re.match(r"[0-9a-f]{8} ", body["messages"][0]["content"]) is not None for body in server.bodies]


def record() -> Record:
    return load_record(Path("r.json"))


def test_times_are_those_of_the_server(loadtest: LoadTest) -> None:
    with PlannedServer(lambda _: Plan(first_s=0.1, gap_s=0.03, tokens=5)) as server:
        slos = ("--slo", "ttft:5s", "--slo", "e2e:1ms")
        code, out, err = loadtest(server.url, "--concurrency", "4", *SHORT, *slos)
    assert code == 0
    warning = f"warning: {server.url.removeprefix('http://')}: 100.0% of the answers are shorter than asked: 5 "
    assert f"\n{warning}" in err and "set an `--output-len`" in err
    assert "planned, 8 requests, none failed, 7 tokens in, 5 tokens out" in out
    (variant,) = record().variants
    for sample in variant.samples:
        assert sample.metrics["ttft_s"] >= 0.1 and sample.e2e_s >= 0.22
        assert sample.metrics["slo_attainment"] == 0
        assert sample.work == {"requests": 4, "input_tokens": 28, "output_tokens": 20}
        assert sample.metrics["requests_per_second"] <= 4 / 0.22
    # A first token that is noticed late shortens the time between tokens, and the end is no earlier for it.
    for ttft_s, tpot_s in zip(request_values(variant, "ttft_s"), request_values(variant, "tpot_s"), strict=True):
        assert ttft_s >= 0.1 and ttft_s + 4 * tpot_s >= 0.22 - 1e-9
    # How much more it is depends on what else this machine does; one of eight requests is not held up much.
    assert min(request_values(variant, "ttft_s")) < 0.15 and min(request_values(variant, "tpot_s")) < 0.045
    assert min(request_values(variant, "e2e_s")) < 0.3
    said = variant.effective["server"]
    assert (said["id"], said["owned_by"]) == ("planned", "test") and said["server"].startswith("BaseHTTP")


def test_requests_are_equal_for_all_servers_and_contain_the_options(loadtest: LoadTest) -> None:
    with PlannedServer(lambda _: Plan()) as first, PlannedServer(lambda _: Plan()) as second:
        code, out, _ = loadtest(first.url, second.url, *SHORT, "--seed", "5", "--output-len", "9")
    assert code == 3, "two blocks decide nothing"
    assert "outputs" in out and "identical" in out
    key = json.dumps
    sent, others = map(window_bodies, (first, second))
    assert sorted(map(key, sent)) == sorted(map(key, others))
    assert len(set(map(key, sent))) == 3 * 4, "no two requests are alike"
    body = sent[0]
    assert len(body.pop("messages")[0]["content"].split()) == 32
    assert body.pop("seed") in range(5, 17)
    assert body == {
        "model": "planned", "max_completion_tokens": 9, "temperature": 0.0, "stream": True, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    names = [variant.name for variant in record().variants]
    assert names == [server.url.removeprefix("http://") for server in (first, second)]


def test_other_outputs_are_noticed(loadtest: LoadTest) -> None:
    with PlannedServer(lambda _: Plan()) as first, PlannedServer(lambda _: Plan(text="other ")) as second:
        code, _, err = loadtest(first.url, second.url, *SHORT, "--require-identical-outputs")
    assert code == 5 and "outputs" in err


def pays(euros: int, name: str = "pay") -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": json.dumps({"eur": euros})}}]}


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ((pays(10), pays(99)), 5),
        ((pays(10), pays(10, "refund")), 5),
        (({"refusal": "No."}, {"refusal": "Ask a doctor."}), 5),
        (({"content": "hm"}, {"reasoning": "hm"}), 5),
        (({"content": "hm"}, {"role": "assistant"}), 5),
        ((pays(10), pays(10)), 0),
        (({"role": "assistant"}, {"role": "assistant"}), 3),
    ],
)
@pytest.mark.parametrize("option", ["--require-identical-outputs", "--quality"])
def test_all_parts_of_answers_are_compared(
    deltas: tuple[dict[str, Any], ...], expected: int, option: str, loadtest: LoadTest
) -> None:
    """`--quality` works with a number of windows, and answers of nothing are not called identical."""
    words = (option, "exact_match>=1") if option == "--quality" else (option,)
    one, other = (Plan(tokens=1, delta=delta) for delta in deltas)
    with PlannedServer(lambda _: one) as first, PlannedServer(lambda _: other) as second:
        code, out, err = loadtest(first.url, second.url, *SHORT, *words)
    assert code == expected
    assert "identical" in out if expected == 0 else "were not recorded" in err if expected == 3 else True


@pytest.mark.parametrize("faults", [(), ("refuses verbose_json",)])
def test_transcripts_are_measured_by_the_sound_that_was_sent(faults: tuple[str, ...], loadtest: LoadTest) -> None:
    with ChatServer(*faults) as server:
        code, _, _ = loadtest(server.url, "--endpoint", "transcriptions", *SHORT)
    (variant,) = record().variants
    assert code == 0 and (variant.effective["server"].get("response_format") == "json") == bool(faults)
    assert sorted(set(request_values(variant, "audio_s"))) == pytest.approx([1.83, 2.14], abs=0.3)


def test_the_record_has_the_lengths_that_were_asked_for(loadtest: LoadTest) -> None:
    lines = [{"timestamp": 100 * n, "input_length": 600, "output_length": 4, "hash_ids": [n // 2]} for n in range(4)]
    Path("trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with PlannedServer(lambda _: Plan(tokens=4)) as server:
        code, _, err = loadtest(server.url, "--requests", "trace.jsonl", *SHORT)
    assert code == 0 and "shorter than asked" not in err
    assert err.startswith("warning: the lengths of the file are tokens, and its prompts have as many words")
    requests = record().variants[0].samples[0].requests
    assert requests["asked_input_len"] == (600,) * 4 and requests["input_tokens"] == (7,) * 4
    assert requests["asked_output_len"] == requests["output_tokens"] == (4,) * 4
    prompts = [body["messages"][0]["content"].split() for body in server.bodies]
    assert [len(words) for words in prompts] == [600] * len(prompts)
    firsts = [tuple(words[:512]) for words in prompts[-4:]]
    assert firsts[0] == firsts[1] != firsts[2] == firsts[3] and prompts[-4] != prompts[-3]
    assert firsts[0] != tuple(prompts[0][:512]), "blocks are new in each window"


def test_a_batch_file_is_sent_as_it_is(loadtest: LoadTest) -> None:
    body = {"model": "gpt", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "seed": 5}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    Path("batch.jsonl").write_text(json.dumps(line))
    with PlannedServer(lambda _: Plan()) as server:
        assert loadtest(server.url, "--requests", "batch.jsonl", *SHORT)[0] == 0
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    assert server.bodies[-1] == {**body, "model": "planned", "temperature": 0.0, **stream}


def test_other_work_is_noticed(loadtest: LoadTest) -> None:
    with PlannedServer(lambda _: Plan()) as first, PlannedServer(lambda _: Plan(tokens=5)) as second:
        code, _, err = loadtest(first.url, second.url, *SHORT)
        assert code == 4 and "not comparable: work.output_tokens (16 against 20)" in err
        assert loadtest(first.url, *SHORT)[0] == 0
        code, _, err = loadtest(second.url, "--num-iters", "1", "--num-requests", "4", "--baseline", "r.json")
    assert code == 4 and "work.output_tokens" in err


def test_a_slower_server_is_found_and_fails_the_gate(loadtest: LoadTest) -> None:
    few = ("--num-iters", "10", "--num-iters-warmup", "1", "--num-requests", "4", "--concurrency", "4")
    with PlannedServer(lambda _: Plan(first_s=0.03)) as first, PlannedServer(lambda _: Plan(first_s=0.15)) as second:
        code, out, err = loadtest(first.url, second.url, *few, "--max-regression", "20%", "--junit", "g.xml", "--json")
    assert code == 1 and "`e2e_s` is worse by" in err
    document = json.loads(out)
    verdicts = {entry["metric"]: entry["verdict"] for entry in document["comparisons"]}
    assert verdicts["e2e_s"] == verdicts["ttft_s"] == verdicts["requests_per_second"] == "slower"
    assert document["gate"]["verdict"] == "regression"
    assert "chat of a server" in Path("g.xml").read_text()


def test_a_baseline_of_another_port_is_comparable(loadtest: LoadTest) -> None:
    few = ("--num-iters", "10", "--num-iters-warmup", "1", "--num-requests", "4", "--concurrency", "4")
    with PlannedServer(lambda _: Plan(first_s=0.05)) as server:
        assert loadtest(server.url, *few, "--output-json", "base.json")[0] == 0
    with PlannedServer(lambda _: Plan(first_s=0.05)) as server:
        code, out, err = loadtest(server.url, *few, "--baseline", "base.json", "--max-regression", "400%")
        assert code == 0, err
        assert "settings.url" in out and "pass" in out
        code, _, err = loadtest(server.url, *few, "--baseline", "base.json", "--output-len", "7")
        assert code == 4 and "workload.output_len" in err
    assert run(["compare", "base.json", "base.json"]) == 0
    assert run(["report", "base.json", "-o", "page.html"]) == 0


def test_failures_are_counted_and_fail_the_run(loadtest: LoadTest) -> None:
    def plan(number: int) -> Plan:
        if number < 4:
            return Plan()
        return [Plan(status=429, error={"message": "the queue is full", "code": "queue_full"}), Plan(),
                Plan(cut_after=2), Plan()][number % 4]  # fmt: skip

    with PlannedServer(plan) as server:
        code, out, err = loadtest(server.url, *SHORT)
    assert code == 6
    assert "4 of 8 requests failed: 2 x HTTP 429 queue_full, 2 x " in err and "the queue is full" in err
    assert "hint: send fewer requests at once" in err
    assert "8 requests, 4 failed" in out
    for sample in record().variants[0].samples:
        assert sum(found.count for found in sample.failures.values()) == 2
        assert sample.requests["e2e_s"].count(None) == 2 and sample.work["requests"] == 2


def test_a_gate_does_not_pass_over_failures(loadtest: LoadTest) -> None:
    with (
        PlannedServer(lambda _: Plan()) as first,
        PlannedServer(lambda n: Plan(status=200 if n % 4 else 500)) as second,
    ):
        code, out, _ = loadtest(first.url, second.url, *SHORT, "--max-regression", "900%", "--json")
    assert code == 6 and json.loads(out)["gate"]["verdict"] == "failed"


def test_a_server_that_answers_nothing_ends_the_run_at_once(loadtest: LoadTest) -> None:
    error = {"message": "Unrecognized request argument: ignore_eos", "type": "invalid_request_error", "code": None}
    with PlannedServer(lambda _: Plan(status=400, error=error)) as server:
        code, out, err = loadtest(server.url, *SHORT)
        assert len(server.bodies) == 4
        assert loadtest(server.url, *SHORT, "--no-ignore-eos")[0] == 6
        assert all("ignore_eos" not in body for body in server.bodies[4:])
    assert (code, out) == (6, "") and not Path("r.json").exists()
    assert "answered none of 4 requests (warming up): 4 x HTTP 400; the first one: Unrecognized request" in err
    assert "`--no-ignore-eos`" in err


def test_windows_from_before_a_server_dies_are_kept(loadtest: LoadTest) -> None:
    with PlannedServer(lambda number: Plan(status=200 if number < 8 else 503)) as server:
        code, out, err = loadtest(server.url, "--num-iters", "9", *SHORT[2:])
    assert code == 6 and "answered none of 4 requests (block 1): 4 x HTTP 503 refused" in err
    (variant,) = record().variants
    assert len(variant.samples) == 1 and "answered none" in variant.error
    assert "4 requests, none failed" in out


def stops_after(position: int, name: signal.Signals) -> PlannedServer:
    """A server that stops the command as Ctrl-C does, after this one of all windows' requests, and then is slow."""
    stopped: list[int] = []

    def plan(number: int) -> Plan:
        if not stopped and number and server.bodies[-1]["seed"] == position:
            stopped.append(number)
            os.kill(os.getpid(), name)
        return Plan(first_s=3.0 if stopped else 0.05)

    server = PlannedServer(plan)
    return server


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("load", ["trace", "closed"])
def test_an_interrupt_keeps_the_answers_of_its_window(load: str, name: signal.Signals, loadtest: LoadTest) -> None:
    Path("trace.jsonl").write_text("".join(f'{{"prompt": "{n}", "arrival_s": {n / 10}}}\n' for n in range(20)))
    few = ("--num-iters-warmup", "1", "--num-iters", "2", "--output-json", "r.json")
    words = ("--requests", "trace.jsonl") if load == "trace" else ("--concurrency", "2", "--num-requests", "20")
    with stops_after(34, name) as server:
        code, out, err = loadtest(server.url, *words, *few)
    assert code == 130 and "error: interrupted" in err
    (sample,) = record().variants[0].samples
    assert sample.unanswered_s and len(sample.unanswered_s) <= 2 and "of its requests had no answer yet" in err
    answered = len(sample.requests["e2e_s"])
    assert 12 <= answered <= 17 and sample.failures == {} and f"{answered} requests, none failed" in out
    # Two clients of 0.05 s each, and 10 requests per second.
    assert sample.metrics["requests_per_second"] <= (11 if load == "trace" else 40)
    assert run(["compare", "r.json", "r.json"]) in (0, 3)


def test_an_interrupt_after_whole_windows_leaves_their_comparison_as_it_is(loadtest: LoadTest) -> None:
    few = ("--num-iters-warmup", "1", "--num-requests", "8", "--output-json", "r.json")
    with PlannedServer(lambda _: Plan()) as first, stops_after(3 * 8 + 5, signal.SIGINT) as second:
        code, out, err = loadtest(first.url, second.url, *few, "--num-iters", "9", "--concurrency", "2")
    assert code == 130 and "not comparable" not in err
    assert [variant.samples[-1].unanswered_s is UNSET for variant in record().variants] == [True, False]
    assert "work." not in out and "identical" in out


def test_a_request_that_hangs_is_a_failure(loadtest: LoadTest) -> None:
    with PlannedServer(lambda number: Plan(first_s=60.0 if number == 6 else 0.0)) as server:
        code, _, err = loadtest(server.url, *SHORT, "--request-timeout", "2")
    assert code == 6 and "1 of 8 requests failed: 1 x timeout; the first one: no complete answer within 2 s" in err


def test_without_usage_there_is_a_warning_and_no_guess(loadtest: LoadTest) -> None:
    with PlannedServer(lambda _: Plan(with_usage=False)) as server:
        code, _, err = loadtest(server.url, *SHORT)
    assert code == 0 and "reports no token counts" in err
    for sample in record().variants[0].samples:
        assert set(sample.metrics) == {"ttft_s", "itl_s", "requests_per_second"}
        assert sample.work == {"requests": 4}


@pytest.mark.parametrize(
    ("content_type", "options", "audio_s", "warns"),
    [
        ("audio/pcm", (), 1.0, True),
        ("audio/pcm;rate=48000;channels=2", ("--sample-rate", "8000"), 0.25, False),
        ("audio/pcm", ("--sample-rate", "16000"), 1.5, False),
    ],
)
def test_the_rate_of_speech_is_stated_or_assumed(
    loadtest: LoadTest, content_type: str, options: tuple[str, ...], audio_s: float, warns: bool
) -> None:
    plan = Plan(sound=(b"\x00\x20" * 24_000,), content_type=content_type)
    with PlannedServer(lambda _: plan) as server:
        code, out, err = loadtest(server.url, "--endpoint", "speech", "--slo", "underruns:0", *options, *SHORT)
    assert code == 0 and err.count("24 kHz") == warns and f"{audio_s:g} s audio" in out
    for sample in record().variants[0].samples:
        assert sample.requests["audio_s"] == (audio_s,) * 4 and ("is_rate_assumed" in sample.requests) == warns
        assert sample.metrics["underruns"] == 0 and sample.metrics["slo_attainment"] == 1


@pytest.mark.parametrize(("silent", "attainment"), [(1, 0.0), (2, 0.5)])
def test_a_silent_answer_is_said_and_misses_a_limit_on_what_is_heard(
    silent: int, attainment: float, loadtest: LoadTest
) -> None:
    """All answers, or every second one."""
    sounds = [Plan(sound=(piece * 4800,), content_type="audio/pcm;rate=24000") for piece in (b"\0\0", b"\0\x20")]
    with PlannedServer(lambda number: sounds[number % silent]) as server:
        code, _out, err = loadtest(server.url, "--endpoint", "speech", "--slo", "heard:30s", *SHORT)
    assert code == 0 and f"{8 // silent} of 8 answers are silent" in err
    assert [sample.metrics["slo_attainment"] for sample in record().variants[0].samples] == [attainment] * 2


def test_choices_of_a_request_add_up_to_what_was_asked(loadtest: LoadTest) -> None:
    with PlannedServer(lambda _: Plan(tokens=4)) as server:
        code, _, err = loadtest(server.url, *SHORT, "--output-len", "4", "--extra-body", '{"n": 2}')
    assert code == 0 and "100.0% of the answers are shorter than asked: 4 tokens" in err
    assert record().variants[0].samples[0].requests["asked_output_len"] == (8,) * 4


def test_what_is_not_the_sound_that_was_asked_for_is_a_failure(loadtest: LoadTest) -> None:
    answers = [(b"ID3\4", "audio/mpeg"), (b'{"error": "busy"}', "application/json"), (b"\0\0" * 99, "audio/pcm")]
    plans = [Plan(sound=(content,), content_type=kind) for content, kind in answers]
    with PlannedServer(lambda number: plans[number % 3]) as server:
        code, out, err = loadtest(server.url, "--endpoint", "speech", *SHORT)
    assert code == 6 and "mp3 instead of pcm" in err and "application/json instead of pcm" in err
    (failures, _) = (sample.failures for sample in record().variants[0].samples)
    assert failures["application/json instead of pcm"].first == '{"error": "busy"} is not pcm, as asked for'
    assert "5 failed" in out


@pytest.mark.parametrize("how", ["option", "joined", "environment"])
def test_the_key_is_sent_and_never_shown(loadtest: LoadTest, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    key = "sk-hunter2-0123456789"
    options = {"option": ["--api-key", key], "joined": [f"--api-key={key}"], "environment": []}[how]
    if how == "environment":
        monkeypatch.setenv("OPENAI_API_KEY", key)
    refusal = {"message": f"Incorrect API key provided: {key}", "code": "invalid_api_key"}
    with PlannedServer(lambda number: Plan(status=401 if number == 5 else 200, error=refusal)) as server:
        code, out, err = loadtest(server.url, *SHORT, *options, "-v", "--markdown", "m.md", "--json")
    assert code == 6 and "Incorrect API key provided: ***" in err
    assert all(headers["Authorization"] == f"Bearer {key}" for headers in server.headers)
    written = "".join(path.read_text() for path in Path().iterdir())
    assert key not in out + err + written
    assert json.loads(out)["command"][:2] == ["omni", "loadtest"]


@pytest.mark.parametrize("owner", ["vllm", "omni-cli"])
def test_prompts_are_salted_where_the_server_remembers_them(loadtest: LoadTest, owner: str) -> None:
    with PlannedServer(lambda _: Plan(), owned_by=owner) as server:
        assert loadtest(server.url, "--vary", "concurrency=1,2", *SHORT)[0] in (0, 3)
    salts = {body["cache_salt"] for body in server.bodies}
    assert len(salts) == 2, "one per variant, another one in every run"
    assert not any(salt in Path("r.json").read_text() for salt in salts)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ({"x": 1}, "does not answer GET /v1/models as OpenAI's API does"),
        ([], "has no model"),
        (["planned"], "does not answer GET /v1/models as OpenAI's API does"),
    ],
)
def test_servers_that_are_none(loadtest: LoadTest, models: Any, message: str) -> None:
    with PlannedServer(lambda _: Plan(), models=models) as server:
        code, _, err = loadtest(server.url)
    assert code == 6 and message in err and not server.bodies


def test_extra_body_overrides_every_request(loadtest: LoadTest) -> None:
    with PlannedServer(lambda _: Plan()) as server:
        extra = '{"top_k": 1, "seed": 7, "max_tokens": 3}'
        assert loadtest(server.url, *SHORT, "--model", "mine", "--extra-body", extra)[0] == 0
    assert {(body["model"], body["top_k"], body["seed"]) for body in server.bodies} == {("mine", 1, 7)}
    assert not any("max_completion_tokens" in body for body in server.bodies), "servers take that before `max_tokens`"


def test_an_open_loop_measures_a_stalled_server_as_its_users_do(loadtest: LoadTest) -> None:
    """One request of each window hangs for a second; those that are due meanwhile are sent, and answered."""
    with PlannedServer(lambda number: Plan(first_s=1.0 if number % 20 == 0 else 0.0, tokens=1)) as server:
        few = ("--num-iters", "1", "--num-iters-warmup", "1", "--num-requests", "20", "--output-json", "r.json")
        code, _, err = loadtest(server.url, "--request-rate", "40", *few)
    assert code == 0, err
    (sample,) = record().variants[0].samples
    assert sorted(time_s > 1.0 for time_s in sample.requests["e2e_s"]) == [False] * 19 + [True]
    assert len(sample.requests["lag_s"]) == 20 and sample.requests["start_s"] == tuple(
        sorted(sample.requests["start_s"])
    )
    assert max(sample.requests["start_s"]) <= 20 / 40 + 0.001


def test_conversations_are_sent_with_the_lengths_of_their_answers(loadtest: LoadTest) -> None:
    conversations = [
        {"conversations": [{"from": "human", "value": f"question {n}"}, {"from": "gpt", "value": "word " * (n + 1)}]}
        for n in range(3)
    ]
    Path("talks.json").write_text(json.dumps([*conversations, {"conversations": []}]))
    with PlannedServer(lambda _: Plan()) as server:
        code, out, err = loadtest(server.url, "--requests", "talks.json", "--slo", "e2e:60s", *SHORT)
    assert code == 0 and "given requests" in out and "goodput per second" in out
    assert "1 of 4 conversations do not begin with a question" in err
    is_new = new_prompts(server)
    sent = [
        (body["messages"][0]["content"], body["max_completion_tokens"])
        for body, new in zip(server.bodies, is_new, strict=True)
        if not new
    ]
    assert len(sent) == 3 * 4 and set(sent) == {(f"question {n}", n + 1) for n in range(3)}, "from the first again"
    assert record().workload["requests_sha256"] and "input_len" not in record().workload


def since_the_first(sample: Sample) -> list[float]:
    """The times at which requests were due."""
    due = [seconds or 0.0 for seconds in sample.requests["start_s"]]
    return [seconds - due[0] for seconds in due]


def test_a_trace_is_sent_at_its_times_or_faster(loadtest: LoadTest) -> None:
    lines = [{"prompt": f"at {at}", "arrival_s": at} for at in (10.0, 10.1, 10.4)]
    Path("trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = ("--requests", "trace.jsonl", "--num-iters", "1", "--num-iters-warmup", "1", "--output-json", "r.json")
    with PlannedServer(lambda _: Plan()) as server:
        code, out, _ = loadtest(server.url, *trace)
        assert code == 0 and "7.5 requests per second as in the trace" in out
        (sample,) = record().variants[0].samples
        assert since_the_first(sample) == pytest.approx([0.0, 0.1, 0.4], abs=1e-6)
        assert [body["messages"][0]["content"] for body in server.bodies[-3:]] == ["at 10.0", "at 10.1", "at 10.4"]
        loadtest(server.url, *trace, "--request-rate", "15")
        (sample,) = record().variants[0].samples
        assert since_the_first(sample) == pytest.approx([0.0, 0.05, 0.2], abs=1e-6)
        loadtest(server.url, *trace, "--vary", "request_rate=15,30")
        assert [variant.name for variant in record().variants] == ["request_rate=15.0", "request_rate=30.0"]
        code, _, err = loadtest(server.url, *trace, "--concurrency", "2")
        assert code == 2 and "`--concurrency` and requests with arrival times exclude each other" in err
        code, _, err = loadtest(server.url, *trace, "--num-requests", "4")
        assert code == 2 and "does not fit a trace of 3 requests" in err


def test_the_highest_rate_lies_between_one_that_is_met_and_one_that_is_missed(loadtest: LoadTest) -> None:
    """The server answers the requests of the first two rates, whose windows are equally long, and no further ones."""
    options = ("--find-max-rate", "80%", "--slo", "e2e:30s", "--request-rate", "500", "--num-requests", "32")
    few = ("--num-iters", "12", "--num-iters-warmup", "1")
    with PlannedServer(lambda n: Plan() if n < 13 * (32 + 64) else Plan(status=503)) as server:
        code, out, err = loadtest(server.url, *options, *few, "--json", "--output-json", "rates.json")
    found = json.loads(out)
    assert code == 0 and json.loads(Path("rates.json").read_text()) == found
    # No terminal: what is measured, rate by rate, and nothing else.
    assert err.startswith("[0 s] requests one after the other, 1 iteration of each\n")
    rates = re.findall(r"(?m)^\[.*\] (\S+) requests per second, 12 iterations of each$", err)
    assert [float(rate) for rate in rates] == [pytest.approx(trial["rate"], rel=1e-3) for trial in found["rates"]]
    assert found["schema"] == "omni.max-rate/1" and found["low"] == 1000 < found["high"] <= 1100
    assert found["rates"][0]["verdict"] == "met" and found["rates"][0]["ci95"][0] > 0.8
    assert [trial["verdict"] for trial in found["rates"][2:]] == ["missed"] * (len(found["rates"]) - 2)
    assert "answered none of 128 requests" in found["rates"][2]["reason"]


def test_the_first_rate_is_near_the_highest(loadtest: LoadTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 8 requests, after one to warm up, are met at 500, 2,000 and 8,000 per second, and missed beyond."""
    monkeypatch.setattr("omni_cli.cli.loadtest.max_rate._FIRST", 500.0)
    options = ("--find-max-rate", "80%", "--slo", "e2e:30s", "--time-budget", "0.01", "--num-iters", "12")
    with PlannedServer(lambda n: Plan() if n < 3 * 2 * 8 + 4 * 8 else Plan(status=503)) as server:
        code, out, _ = loadtest(server.url, *options, "--json")
    found = json.loads(out)
    assert (code, found["low"], found["rates"][0]["rate"]) == (3, None, 16000.0)


def test_a_server_that_refuses_the_first_requests_is_not_searched(
    loadtest: LoadTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_cli.cli.loadtest.max_rate._FIRST", 500.0)
    options = ("--find-max-rate", "80%", "--slo", "e2e:1s", "--time-budget", "0.01")
    with PlannedServer(lambda _: Plan(status=400)) as server:
        code, out, err = loadtest(server.url, *options)
    assert (code, out, err.count("error: ")) == (6, "", 1) and "answered none of 8 requests" in err


def test_a_server_that_ends_misses_no_rate(loadtest: LoadTest) -> None:
    options = ("--find-max-rate", "80%", "--slo", "e2e:30s", "--request-rate", "500", "--num-requests", "32")

    def plan(number: int) -> Plan:
        if number == 13 * 32:
            server.__exit__(None, None, None)
        if number >= 13 * 32:
            raise ConnectionError
        return Plan()

    with PlannedServer(plan) as server:
        code, out, err = loadtest(server.url, *options, "--num-iters", "12", "--num-iters-warmup", "1", "--json")
    found = json.loads(out)
    assert (found["low"], found["high"], len(found["rates"])) == (500, None, 1)
    assert code == 6 and "\nerror: cannot reach" in err


def test_the_time_limit_of_a_search_is_the_one_that_was_given(loadtest: LoadTest) -> None:
    """The server hangs after two windows of eight requests, each sent when the last one was answered."""
    options = ("--find-max-rate", "80%", "--slo", "e2e:30s", "--request-rate", "500", "--num-requests", "8")
    with PlannedServer(lambda n: Plan(first_s=0.0 if n < 16 else 5.0)) as server:
        code, _, err = loadtest(server.url, *options, "--timeout", "1")
    assert code != 0 and "error: the run did not finish within 1 s" in err


def test_a_server_that_never_meets_the_limit_has_no_highest_rate(loadtest: LoadTest) -> None:
    options = ("--find-max-rate", "80%", "--slo", "e2e:1ms", "--request-rate", "8000", "--num-requests", "8")
    with PlannedServer(lambda _: Plan(first_s=0.002)) as server:
        code, out, err = loadtest(server.url, *options, "--num-iters", "12", "--num-iters-warmup", "1")
    assert code == 3 and out == ""
    assert "\nerror: no rate can be within the SLO: of requests that are sent one after the other, e2e takes" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--find-max-rate", "90%"], "`--find-max-rate` needs a limit to meet"),
        (["--find-max-rate", "0%", "--slo", "e2e:1s"], "the share is not between 0% and 100%"),
        (["--find-max-rate", "100%", "--slo", "e2e:1s"], "the share is not between 0% and 100%"),
        (["--find-max-rate", "90%", "--slo", "e2e:1s", "--concurrency", "4"], "`--find-max-rate` and --concurrency"),
        (["--find-max-rate", "90%", "--slo", "e2e:1s", "http://127.0.0.1:2"], "`--find-max-rate` and a second URL"),
        (["--requests", "missing.json"], "cannot open the requests file `missing.json`"),
        (["--requests", "r.jsonl", "--input-len", "4"], "`--input-len` and `--requests` exclude each other"),
    ],
)
def test_mistakes_with_files_and_rates(arguments: list[str], message: str, loadtest: LoadTest) -> None:
    code, out, err = loadtest("http://127.0.0.1:1", *arguments)
    assert (code, out, err.count("error: ")) == (2, "", 1) and message in err
