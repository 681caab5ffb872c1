"""`--requests FILE.jsonl`: the fields of a line, and that a bad line fails alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from support.profile_text import make_config

from omni_cli.cli.generate.inputs import read_specs
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, EngineConfig
from omni_cli.core.errors import InputError, UsageError
from omni_cli.engine.describing import get_capabilities
from omni_cli.requests.contents import SpeechOptions, TextOptions
from omni_cli.requests.jsonl import read_requests
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.request_spec import BadRequest, RequestSpec, build_request

OMNI = make_config(
    "tiny-omni",
    "builtin:tiny-omni",
    ARStageConfig.create("thinker"),
    ARStageConfig.create("talker", input="thinker"),
    DiffusionStageConfig.create("token2wav", backend="vllm", input="talker"),
)
IMAGE = make_config("tiny-image", "builtin:tiny-image", DiffusionStageConfig.create("image"))


def read(path: Path, *lines: object, config: EngineConfig = OMNI, **defaults: object) -> list:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text + "\n")
    return read_requests(path, get_capabilities(config), defaults)


def test_lines_become_requests(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    first, second = read(
        path,
        {"prompt": "hello", "seed": 7, "sampling": {"top_p": 0.5}, "modalities": ["text"], "raw": True},
        "",
        {
            "prompt": "listen",
            "audio": "a.wav",
            "request_id": "b",
            "speaker": "Chelsie",
            "num_inference_steps": 4,
        },
        max_tokens=5,
        temperature=0.5,
    )
    assert first == RequestSpec(
        GenerateRequest(
            "0",
            "hello",
            seed=7,
            modalities=frozenset({"text"}),
            text=TextOptions(raw=True),
            sampling={"max_tokens": 5, "temperature": 0.5, "top_p": 0.5},
        ),
        has_seed=True,
        place=f"{path}:1",
    )
    assert second == RequestSpec(
        GenerateRequest(
            "b",
            "listen",
            speech=SpeechOptions(speaker="Chelsie"),
            sampling={"max_tokens": 5, "temperature": 0.5},
            diffusion={"num_inference_steps": 4},
        ),
        {"audio": (tmp_path / "a.wav",)},
        place=f"{path}:3",
    )


def test_a_line_overrides_the_command_line(tmp_path: Path) -> None:
    (spec,) = read(
        tmp_path / "r.jsonl",
        {"prompt": "x", "sampling": {"max_tokens": 2}, "speaker": "Ethan"},
        max_tokens=5,
        temperature=0.5,
        speaker="Chelsie",
    )
    assert (spec.request.sampling, spec.request.speech.speaker) == ({"max_tokens": 2, "temperature": 0.5}, "Ethan")


BAD_LINES = {
    "not json": "not JSON: Expecting value at column 1",
    '{"prompt": "a"': "not JSON",
    '["prompt"]': "not a JSON object",
    '{"prompt": "a", "prompt": "b"}': "duplicate key `prompt`",
    '{"prompt": "a", "seed": NaN}': "NaN is not a JSON number",
    "{}": "`prompt` is missing",
    '{"prompt": ""}': "`prompt` is empty",
    '{"prompt": " \\n"}': "`prompt` is empty",
    '{"prompt": 3}': "`prompt` must be text, not a number",
    '{"prompt": null}': "`prompt` must be text, not null",
    '{"prompt": "\\ud800"}': "`prompt` must be valid Unicode",
    '{"promt": "a"}': "unknown key `promt`",
    '{"prompt": "a", "max_tokens": 3}': "unknown key `max_tokens`",
    '{"prompt": "a", "seed": true}': "`seed` must be a whole number",
    '{"prompt": "a", "seed": 1.5}': "`seed` must be a whole number",
    '{"prompt": "a", "seed": 123456789012345678901234567890}': "not that large",
    '{"prompt": "a", "sampling": 3}': "`sampling` must be an object",
    '{"prompt": "a", "media_io_kwargs": {"audio": {}}}': "`media_io_kwargs` must be an object of numbers for videos",
    '{"prompt": "a", "media_io_kwargs": {"video": {"fps": "2"}}}': "`media_io_kwargs` must be an object of numbers",
    '{"prompt": "a", "sampling": {"temprature": 1}}': "unknown key `temprature`; did you mean `temperature`",
    '{"prompt": "a", "sampling": {"top_p": 2}}': "an invalid value for `top_p`, which should be less",
    '{"prompt": "a", "sampling": {"max_tokens": "3"}}': "`max_tokens`, which should be a valid integer",
    '{"prompt": "a", "audio": 3}': "`audio` must be a file name",
    '{"prompt": "a", "audio": ["x", 1]}': "`audio` must be a file name",
    '{"prompt": "a", "modalities": "sound"}': "not `sound`",
    '{"prompt": "a", "modalities": []}': "the list is empty",
    '{"prompt": "a", "modalities": ["image"]}': "makes text and audio, not `image`",
    '{"prompt": "a", "height": 64}': "`height` has no effect",
    '{"prompt": "a", "guidance_scale": 1e999}': "`guidance_scale` must be a finite number",
    '{"prompt": "a", "num_inference_steps": 1.5}': "`num_inference_steps` must be a whole number",
    '{"prompt": "a", "request_id": 5}': "`request_id` must be text",
    '{"prompt": "a", "request_id": "a\\nb"}': "control characters",
    '{"prompt": "a", "request_id": "good"}': "`good` is already used at ",
    "[" * 100_000: "nested too deeply|not JSON",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=[key[:40] for key in BAD_LINES])
def test_a_bad_line_fails_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requests.jsonl"
    good, bad, other = read(path, {"prompt": "a", "request_id": "good"}, line, {"prompt": "b"})
    assert isinstance(good, RequestSpec) and isinstance(other, RequestSpec)
    assert isinstance(bad, BadRequest) and bad.place == f"{path}:2"
    with pytest.raises(UsageError, match=BAD_LINES[line]):
        raise bad.error


def test_what_the_values_of_a_pipeline_mean_is_left_to_it(tmp_path: Path) -> None:
    values = {"height": 0, "width": 100_000, "guidance_scale": -2.0, "num_inference_steps": 0, "negative_prompt": ""}
    (spec,) = read(tmp_path / "r.jsonl", {"prompt": "a", "seed": -1, **values}, config=IMAGE)
    assert (spec.request.diffusion, spec.request.seed) == (values, -1)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("id", "did you mean `request_id`?"),
        ("text", "did you mean `prompt`?"),
        ("question", "did you mean `prompt`?"),
        ("images", "did you mean `image`?"),
        ("lang", "did you mean `language`?"),
        ("steps", "did you mean `num_inference_steps`?"),
        ("image_url", "did you mean `image`?"),
        ("top_p", 'write it as "sampling": {"top_p": ...}'),
        ("max_completion_tokens", 'write it as "sampling": {"max_tokens": ...}'),
        ("output_tokens_count", 'write it as "sampling": {"max_tokens": ...}'),
        ("messages", "a file of OpenAI's batch form has `custom_id`"),
        ("custom_id", "a file of OpenAI's batch form has `custom_id`"),
        ("model", "`--model` chooses the model of all lines"),
        ("usage", "known keys: request_id, prompt"),
    ],
)
def test_keys_of_other_tools_lead_to_ours(key: str, hint: str, tmp_path: Path) -> None:
    (line,) = read(tmp_path / "requests.jsonl", {"prompt": "a", key: "b"})
    assert line.error.hint.startswith(hint)


def test_hints_of_unknown_keys(tmp_path: Path) -> None:
    near, option, far = read(tmp_path / "r.jsonl", {"promt": "a"}, {"prompt": "a", "temperature": 1}, {"xyz": 1})
    assert near.error.hint == "did you mean `prompt`?"
    assert option.error.hint == 'write it as "sampling": {"temperature": ...}'
    assert far.error.hint.startswith("known keys: ")


def test_bytes_that_are_not_utf8_fail_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "\xff"}\r\n\n{"prompt": "c"}')
    first, second, third = read_requests(path, get_capabilities(OMNI), {})
    assert (first.request.prompt, third.request.prompt, third.place) == ("a", "c", f"{path}:4")
    assert "not UTF-8" in second.error.message


def test_an_overlong_line_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.requests.jsonl.MAX_LINE_BYTES", 64)
    first, second, third = read(tmp_path / "r.jsonl", {"prompt": "a"}, {"prompt": "b" * 1000}, {"prompt": "c"})
    assert (first.request.prompt, third.request.prompt, third.place) == ("a", "c", f"{tmp_path / 'r.jsonl'}:3")
    assert "longer than" in second.error.message


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_requests(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"is empty|has no requests"):
        read_requests(tmp_path / "r.jsonl", get_capabilities(OMNI), {})


def test_options_of_videos_are_those_of_the_line_or_of_the_command(tmp_path: Path) -> None:
    lines = tmp_path / "r.jsonl"
    lines.write_text('{"prompt": "x"}\n{"prompt": "y", "media_io_kwargs": {"video": {"max_frames": 8}}}\n')
    capabilities = get_capabilities(OMNI)
    (spec,) = read_specs({"prompt": "x", "media_io_kwargs": '{"video": {"fps": 1}}'}, None, capabilities)
    first, second = read_specs({"media_io_kwargs": '{"video": {"fps": 1}}'}, lines, capabilities)
    assert [each.video_options for each in (spec, first, second)] == [{"fps": 1}, {"fps": 1}, {"max_frames": 8}]
    for wrong in ("fps=1", "[]", '{"video": 1}', '{"image": {}}'):
        with pytest.raises(InputError, match="`--media-io-kwargs` must be an object of numbers for videos"):
            read_specs({"prompt": "x", "media_io_kwargs": wrong}, None, capabilities)


def test_a_request_with_its_files_decoded(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(4000), 8000)
    Image.new("RGB", (3, 2), "red").save(tmp_path / "b.png")
    (spec,) = read(tmp_path / "r.jsonl", {"prompt": "x", "audio": ["a.wav"], "image": "b.png"})
    request = build_request(spec, OMNI.model_copy(update={"seed": 11}))
    ((samples, rate),) = request.media.audio
    assert (len(samples), rate, request.media.images[0].shape, request.seed, request.notes) == (
        4000,
        8000,
        (2, 3, 3),
        11,
        (),
    )
