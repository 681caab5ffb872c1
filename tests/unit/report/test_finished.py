"""`results.jsonl`: the requests that need not be run again, and those that must."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import OutputError
from omni_cli.report.generate_results import FinishedRequests, RequestRecord, WrittenOutput
from omni_cli.requests.outputs import GenerateRequest, TextOutput
from omni_cli.requests.request_spec import FILE_FIELDS, RequestSpec

SPEC = RequestSpec(GenerateRequest("a", "hello"), place="f.jsonl:1")
RECORD = RequestRecord("a", (WrittenOutput(TextOutput("hi \N{GRINNING FACE}", (1, 2), "stop")),))


@pytest.fixture
def finished(tmp_path: Path) -> FinishedRequests:
    return FinishedRequests(tmp_path, load_profile("tiny-omni"))


def test_written_results_are_read(finished: FinishedRequests) -> None:
    assert finished.read() == {}
    key = finished.key(SPEC)
    finished.add(key, RECORD)
    (output,) = finished.read()[key]["outputs"]
    assert output == {"type": "text", "text": "hi \N{GRINNING FACE}", "token_ids": [1, 2], "finish_reason": "stop"}


def test_a_key_is_of_the_request_and_the_profile_and_not_of_its_line(
    finished: FinishedRequests, tmp_path: Path
) -> None:
    key = finished.key(SPEC)
    assert finished.key(replace(SPEC, place="f.jsonl:7")) == key
    requests = [
        GenerateRequest("b", "hello"),
        GenerateRequest("a", "hello!"),
        GenerateRequest("a", "hello", seed=1),
        GenerateRequest("a", "hello", modalities=frozenset({"text"})),
        GenerateRequest("a", "hello", sampling={"max_tokens": 3}),
        GenerateRequest("a", "hello", diffusion={"attention_kwargs": {1: 2, "a": 3}}),
        GenerateRequest("a", "hello", diffusion={"attention_kwargs": {"1": 2, "a": 3}}),
    ]
    others = [*map(RequestSpec, requests), replace(SPEC, has_seed=True)]
    keys = {finished.key(other) for other in others}
    changed = load_profile("tiny-omni", overrides=["thinker.sampling.max_tokens=3"])
    keys.add(FinishedRequests(tmp_path, changed).key(SPEC))
    assert len(keys | {key}) == len(others) + 2


@pytest.mark.parametrize("field", FILE_FIELDS)
def test_a_file_that_has_changed_is_another_request(finished: FinishedRequests, tmp_path: Path, field: str) -> None:
    sound = tmp_path / "file"
    spec = RequestSpec(GenerateRequest("a", "hello"), {field: (sound,)})
    assert spec.with_files(lambda path: path.with_suffix(".x")).files == (tmp_path / "file.x",)
    keys = {finished.key(spec)}
    for content in (b"one", b"other"):
        sound.write_bytes(content)
        keys.add(finished.key(spec))
    assert len(keys) == 3


def test_a_result_without_its_file_is_not_finished(finished: FinishedRequests, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.touch()
    result = {"request_id": "a", "status": "ok", "outputs": [{"type": "image", "path": str(image)}], "stages": []}
    finished.path.write_text(json.dumps({"key": "k", "result": result}) + "\n")
    assert list(finished.read()) == ["k"]
    image.unlink()
    assert finished.read() == {}


def test_a_line_that_was_cut_short_costs_that_line_only(finished: FinishedRequests) -> None:
    finished.add("one", RECORD)
    whole = finished.path.read_bytes()
    finished.path.write_bytes(whole + whole[: len(whole) // 2])
    finished.add("two", RECORD)
    assert list(finished.read()) == ["one", "two"]


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"key": 1}', '{"key": "k", "result": {"status": "error"}}', "\x00"])
def test_lines_of_others_are_passed_over(finished: FinishedRequests, line: str) -> None:
    finished.path.write_text(line + "\n")
    assert finished.read() == {}


def test_a_folder_in_its_place_is_an_error(finished: FinishedRequests) -> None:
    finished.path.mkdir()
    for call in (finished.read, lambda: finished.add("k", RECORD)):
        with pytest.raises(OutputError, match=r"results\.jsonl"):
            call()
