"""Answers that are in time and say their text: what is expected, what counts as good, and what cannot be judged."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from omni_cli.cli.loadtest.options import LoadtestOptions
from omni_cli.cli.loadtest.reading import find_recogniser
from omni_cli.core.errors import InputError, UsageError
from omni_cli.measure.bench.protocol import Ran
from omni_cli.measure.bench.quality import count_word_errors
from omni_cli.measure.loadtest.dataset import Dataset, read_dataset
from omni_cli.measure.loadtest.plan import SendingTurn, ServerVariant
from omni_cli.measure.loadtest.traffic import ClosedLoop
from omni_cli.measure.loadtest.window import Window, get_utterance, window_metrics, window_work
from omni_cli.measure.loadtest.workload import Endpoint, EndpointName, RequestMaker, ServerWorkload
from omni_cli.openai_api.choices import AnswerChoice
from omni_cli.openai_api.client import Client, Outcome, RequestFailure, Target
from omni_cli.openai_api.reading import ServerAnswer
from omni_cli.requests.encoding import encode_wav

SPEECH, TRANSCRIPTS, CHAT = Endpoint("speech"), Endpoint("transcriptions"), Endpoint("chat")
LIMITS = {"e2e": 1.0, "wer": 0.1}


def outcome(seconds: float, expected: str, said: str) -> Outcome:
    answer = ServerAnswer(word_errors=count_word_errors(expected.split(), said.split()))
    return Outcome(0.0, 0.0, seconds, answer)


def test_good_is_in_time_and_right() -> None:
    text = "a b c d e f g h i j"
    failed = Outcome(0.0, 0.0, 0.1, failure=RequestFailure("timeout", "no"))
    outcomes = [
        outcome(0.5, text, text),  # good
        outcome(0.5, text, text[2:]),  # one word of ten, the limit
        outcome(0.5, text, text[4:]),  # in time and wrong
        outcome(1.5, text, text),  # right and late
        outcome(1.5, text, ""),
        failed,
    ]
    window = Window(tuple(outcomes), 0.0, 2.0, 1)
    found = window_metrics(window, LIMITS)
    assert found["slo_attainment"] == pytest.approx(2 / 6)
    assert found["wer"] == found["deletions"] == pytest.approx(13 / 50) and found["insertions"] == 0
    assert window_work(window)["words"] == 50
    columns = window.columns()
    assert columns["words"] == (10.0,) * 5 + (None,) and columns["wer"][:3] == (0.0, 0.1, 0.2)


def test_an_interrupt_while_answers_are_heard_keeps_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, has_begun, is_interrupted = {"words": 2.0, "wer": 0.5}, threading.Event(), threading.Event()

    class Slow:
        def judge(self, answers: list[Any]) -> list[dict[str, float]]:
            has_begun.set()
            assert is_interrupted.wait(60)
            return [heard] * len(answers)

    sent = Window((outcome(0.5, "a b", "a"),), 0.0, 0.5, 1)
    target, client = Target("http://a", "m", {}), Client("http://a", api_key=None, timeout_s=1.0)
    workload, turn = ServerWorkload(TRANSCRIPTS, 3, 8, None, 0, {}), SendingTurn()

    async def measure() -> tuple[Ran, int]:
        variant = ServerVariant("a", client, target, workload, ClosedLoop(1), turn)
        variant.judge = Slow()  # type: ignore[assignment]
        monkeypatch.setattr(variant, "_send_window", AsyncMock(return_value=sent))
        task = asyncio.create_task(variant.run(1, when="now"))
        await asyncio.to_thread(has_begun.wait)
        task.cancel()
        is_interrupted.set()
        return await task, task.cancelling()

    ran, requests_to_end = asyncio.run(measure())
    assert ran.metrics["wer"] == 0.5 and ran.requests["words"] == (2.0,) and requests_to_end == 1


def test_the_share_is_of_all_words_and_not_of_sentences() -> None:
    window = Window((outcome(1.0, "a", "b"), outcome(1.0, "a b c", "a b c")), 0.0, 2.0, 1)
    assert window_metrics(window, {})["wer"] == pytest.approx(1 / 4)


def maker(endpoint: Endpoint, dataset: Dataset | None = None) -> RequestMaker:
    workload = ServerWorkload(endpoint, 3, 8, None, 0, {}, dataset=dataset)
    return RequestMaker(workload, 3, Target("http://a", "m", {}))


def test_speech_has_to_say_its_text() -> None:
    first, *_ = maker(SPEECH).requests(1)
    assert isinstance(first.body, bytes) and first.expected == json.loads(first.body)["input"]
    assert first.asked["sentence"] == 3
    samples = np.zeros(4800, np.float32)
    said = get_utterance(ServerAnswer(pcm=bytearray(2 * 4800), pcm_at=[(0.0, 9600)], expected="hello"))
    assert said[0] == "hello" and said[1][1] == 24_000 and np.array_equal(said[1][0], samples)
    assert get_utterance(ServerAnswer(expected="hello")) == ("hello", ""), "without sound, all words are left out"


def test_the_speech_of_a_chat_has_to_say_its_own_text() -> None:
    answer = ServerAnswer(choices={0: AnswerChoice(content=["Good ", "day"])}, pcm=bytearray(96))
    expected, said = get_utterance(answer)
    assert expected == "Good day" and not isinstance(said, str)


def test_transcripts_of_the_package_are_compared_with_its_sentences() -> None:
    requests = maker(TRANSCRIPTS).requests(0)
    assert [item.asked["sentence"] for item in requests] == [0, 1, 0]
    assert [item.expected for item in requests[:2]] == [
        "What is the capital of France?", "The train to the sea leaves at nine."
    ]  # fmt: skip
    answer = ServerAnswer(choices={0: AnswerChoice(content=["hello"])}, sent_sound_s=1.0, expected="Hello!")
    assert get_utterance(answer) == ("Hello!", "hello")


def test_transcripts_of_a_file(tmp_path: Path) -> None:
    for number in range(2):
        samples = np.full(800 * (number + 1), 0.25, np.float32)
        (tmp_path / f"{number}.wav").write_bytes(encode_wav(samples, 16_000))
    lines = [{"audio": f"{number}.wav", "reference": f"sentence {number}"} for number in range(2)]
    dataset = read(tmp_path, lines)
    requests = maker(TRANSCRIPTS, dataset).requests(0)
    assert [item.expected for item in requests] == ["sentence 0", "sentence 1", "sentence 0"]
    assert [item.sound_s for item in requests] == [0.05, 0.1, 0.05]
    assert [item.asked for item in requests] == [{"sentence": number} for number in (0, 1, 0)]
    (tmp_path / "1.wav").write_bytes(encode_wav(np.zeros(800, np.float32), 16_000))
    assert read(tmp_path, lines).sha256 != dataset.sha256, "media are part of the requests"


@pytest.mark.parametrize("line", [{"reference": "a"}, {"audio": ["a.wav", "b.wav"]}, {"audio": "0.wav", "prompt": "a"}])
def test_a_line_without_one_sound(line: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"requests\.jsonl:1: "):
        read(tmp_path, [line])


def read(folder: Path, lines: list[dict[str, Any]]) -> Dataset:
    path = folder / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return read_dataset(path, count_tokens=len, output_len=None, seed=0, endpoint="transcriptions")


def options(endpoint: EndpointName, **given: Any) -> LoadtestOptions:
    return LoadtestOptions(url=["http://a"], endpoint=endpoint, **given)


def test_transcripts_need_no_recogniser() -> None:
    assert find_recogniser(options("transcriptions", slo=["wer:10%"]), TRANSCRIPTS, None) == ""
    assert find_recogniser(options("speech", slo=["e2e:1s"]), SPEECH, None) is None


@pytest.mark.parametrize(
    ("endpoint", "given", "message", "hint"),
    [
        (SPEECH, {"slo": ["wer:10%"]}, "`--slo wer:10%` needs a model that hears", "--quality wer=FOLDER"),
        (SPEECH, {"slo": ["deletions:0"]}, "needs a model that hears", "--quality wer=FOLDER"),
        (SPEECH, {"quality": ["wer=W", "wer<=0.1"]}, "no other model or limit on one", "--metric wer"),
        (SPEECH, {"quality": ["clip_score=C"]}, "no other model or limit on one", "--slo wer:10%"),
        (CHAT, {"quality": ["wer=W"]}, "not spoken", "omit it"),
    ],
)
def test_words_that_nobody_can_judge(
    endpoint: Endpoint, given: dict[str, Any], message: str, hint: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, kind in (("W", "whisper"), ("C", "clip")):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(UsageError) as caught:
        find_recogniser(options(endpoint.name, **given), endpoint, None)
    assert message in caught.value.message and hint in (caught.value.hint or "")


def test_a_transcript_without_reference_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0.wav").write_bytes(encode_wav(np.zeros(800, np.float32), 16_000))
    dataset = read(tmp_path, [{"audio": "0.wav"}, {"audio": "0.wav", "reference": "a"}])
    with pytest.raises(UsageError, match="1 of the requests have no `reference`"):
        find_recogniser(options("transcriptions", slo=["wer:10%"]), TRANSCRIPTS, dataset)
    assert find_recogniser(options("transcriptions"), TRANSCRIPTS, dataset) is None
