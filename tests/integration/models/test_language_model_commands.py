"""Commands on language models without a profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from support.media_samples import clip, image_of, write_lossless
from support.omni_process import run_omni
from support.references import LanguageReference
from support.tiny_models import llama, qwen3_vl

MAX_TOKENS = 8


def test_a_file_of_requests_with_images_and_video(tmp_path: Path) -> None:
    folder = qwen3_vl(tmp_path / "model")
    Image.fromarray(image_of(1)).save(tmp_path / "a.png")
    (tmp_path / "b.mkv").write_bytes(write_lossless(clip(2)))
    lines = [
        {"prompt": "what is it?", "image": "a.png"},
        {"prompt": "what is it?", "video": "b.mkv"},
        {"prompt": "what is it?", "audio": "none.wav"},
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ("--model", str(folder), "--requests", str(tmp_path / "requests.jsonl"), "--max-tokens", MAX_TOKENS)
    greedy = ("--temperature", "0")
    ended = run_omni(tmp_path, "generate", *map(str, arguments), *greedy, "--json", "-q")
    seen, watched, unheard = json.loads(ended.out)["results"]
    reference = LanguageReference(folder)
    assert seen["outputs"][0]["token_ids"] == reference.tokens("what is it?", MAX_TOKENS, image=[1])
    assert watched["outputs"][0]["token_ids"] == reference.tokens("what is it?", MAX_TOKENS, samples=True, video=[2])
    assert watched["notes"] == [f"the model sees 4 frames of the video file `{tmp_path}/b.mkv`, 5.33 per second, of 6"]
    assert unheard["status"] == "error" and "cannot open the audio file" in unheard["message"]
    assert ended.code == 2


def test_a_batch_file_is_answered_in_its_own_form(tmp_path: Path) -> None:
    folder = llama(tmp_path / "model")
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0.001, "model": "any"}
    asked = [
        ("a", "/v1/chat/completions", chat),
        ("b", "/v1/completions", {"prompt": ["hello", "water"], "max_tokens": 2}),
        ("c", "/v1/responses", {"input": "hello", "max_output_tokens": 2}),
        ("b", "/v1/completions", {"prompt": "again"}),
        ("d", "/v1/completions", {"prompt": "hello", "promt": 1}),
        ("e", "/v1/embeddings", {"input": "hello"}),
        ("f", "/v1/completions", {"prompt": "hello", "stream": True}),
    ]
    lines = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, url, body in asked]
    (tmp_path / "batch.jsonl").write_text("\n".join([*map(json.dumps, lines), "{", '{"custom_id": "g"}']))
    ended = run_omni(tmp_path, "generate", "--model", str(folder), "--requests", "batch.jsonl", "-q")
    answers = [json.loads(line) for line in ended.out.splitlines()]
    assert [answer["custom_id"] for answer in answers] == [*"abcbdef", "line 8", "g"]
    statuses = [(answer["response"] or {}).get("status_code") for answer in answers]
    assert statuses == [200, 200, 200, None, 400, None, None, None, None]
    assert [answer["error"] is None for answer in answers] == [True] * 3 + [False] * 6
    texts = [answer["response"]["body"] for answer in answers[:3]]
    assert [body["object"] for body in texts] == ["chat.completion", "text_completion", "response"]
    assert len(texts[1]["choices"]) == 2 and texts[0]["usage"]["completion_tokens"] == 3
    assert "already used at batch.jsonl:2" in answers[3]["error"]["message"]
    assert answers[4]["response"]["body"]["error"]["param"] == "promt"
    assert "batch.jsonl:1: the temperature 0.001 was raised to 0.01" in ended.err
    assert "batch.jsonl:6: a batch has no `POST /v1/embeddings`" in ended.err
    assert ended.code == 2
    (tmp_path / "again").mkdir()
    ended = run_omni(tmp_path / "again", "generate", "--requests", "../batch.jsonl", "--temperature", "0")
    assert ended.code == 2 and "and no options of requests beside it" in ended.err


@pytest.mark.nightly
def test_they_are_measured_and_recorded(tmp_path: Path) -> None:
    folder = llama(tmp_path / "model")
    common = ("--model", str(folder), "--num-iters", "2", "--input-len", "12", "--output-len", "6", "--json", "-q")
    (tmp_path / "bench").mkdir()
    bench = run_omni(tmp_path / "bench", "bench", *common, "--batch-size", "4")
    assert bench.code == 0, bench.err
    (variant,) = json.loads(bench.out)["variants"]
    assert [sample["work"]["output_tokens"] for sample in variant["samples"]] == [24, 24]
    profile = run_omni(tmp_path, "profile", *common, "--output-dir", str(tmp_path / "profile"))
    assert profile.code == 0, profile.err
    assert [stage["name"] for stage in json.loads(profile.out)["stages"]] == ["model"]
