"""`omni generate` around an engine: its output, its files, its ends.

The engine is a scripted one (`fake_engine.py`): these tests are about the command alone.
"""

from __future__ import annotations

import importlib.util
import io
import json
import random
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

import omni_cli.cli.generate.command
from omni_cli.cli.app import run
from omni_cli.core.errors import ExitCode
from omni_cli.requests.video_encoding import encode_video

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")

Omni = Callable[..., SimpleNamespace]


def load_fake_engine() -> Any:
    spec = importlib.util.spec_from_file_location("fake_engine", FAKE_ENGINE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_engine"] = module
    spec.loader.exec_module(module)
    return module.FakeEngine


@pytest.fixture
def omni(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Omni]:
    """Runs a command line in an empty folder; gives code, out, err and the engines that were made."""
    engine = load_fake_engine()
    monkeypatch.setattr(omni_cli.cli.generate.command, "make_engine", engine)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, stdin: bytes | None = None) -> SimpleNamespace:
        engine.instances.clear()
        stream = io.TextIOWrapper(io.BytesIO(stdin or b""))
        if stdin is None:
            monkeypatch.setattr(stream, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", stream)
        code = run(["generate", *arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert all(instance.closed for instance in engine.instances), "an engine was left open"
        return SimpleNamespace(code=code, out=out, err=err, engines=list(engine.instances))

    yield call
    sys.modules.pop("fake_engine", None)


def pipeline_folder(tmp_path: Path, name: str, **parts: dict[str, Any]) -> str:
    """A pipeline of parts that have a configuration only."""
    folder = tmp_path / name
    folder.mkdir()
    for part, config in parts.items():
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(config))
    index = {part: ["diffusers", "ModelMixin"] for part in parts}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": name, **index}))
    return str(folder)


needs_diffusers = pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed")


def requests_file(*lines: object) -> str:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    Path("requests.jsonl").write_text(text)
    return "requests.jsonl"


def names(folder: Path | str = ".") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


# One request


def test_text_then_the_file(omni: Omni) -> None:
    result = omni("hello there")
    assert result.code == 0
    assert result.out == "HELLO THERE\nout/0.wav   0.50 s audio, 24 kHz\n"
    assert soundfile.info("out/0.wav").frames == 12000
    assert names("out") == ["0.wav"]
    random, *loaded, summary = result.err.splitlines()
    assert random == "tiny-omni has random weights: what it makes has no meaning"
    assert [line.split()[:3] for line in loaded] == [
        ["0", "thinker", "ar"],
        ["1", "talker", "ar"],
        ["2", "token2wav", "diffusion"],
    ]
    assert summary.startswith("  thinker 0.50 s · talker 0.50 s · token2wav 0.25 s · total ")
    assert "TTFT 38 ms" in summary and "peak 768 MiB" in summary
    assert "\x1b" not in result.out + result.err


def test_a_second_run_names_its_files_and_tells_it(omni: Omni) -> None:
    omni("a cube", "-p", "tiny-image")
    result = omni("a cube", "-p", "tiny-image")
    assert (result.code, result.out) == (0, "out/0-2.png   6x4 image\n")
    assert (
        "out has files of an earlier run, so names of this one end in -2; `--overwrite` replaces them\n" in result.err
    )
    assert omni("a cube", "-p", "tiny-image", "--overwrite").out == "out/0.png   6x4 image\n"
    assert names("out") == ["0-2.png", "0.png"]


def test_image(omni: Omni) -> None:
    result = omni("a cube", "-p", "tiny-image", "--seed", "9", "--height", "32")
    assert (result.code, result.out) == (0, "out/0.png   6x4 image\n")
    (request,) = result.engines[0].requests
    assert (dict(request.diffusion), request.seed) == ({"height": 32}, 9)


def test_options_reach_the_engine(omni: Omni, tmp_path: Path) -> None:
    soundfile.write("a.wav", [0.5] * 100, 8000)
    result = omni(
        *("hi", "--audio", "a.wav", "--audio", "a.wav", "--max-tokens", "3", "--temperature", "0.5", "--raw"),
        *(
            "--speaker",
            "Chelsie",
            "--num-inference-steps",
            "4",
            "--guidance-scale",
            "0.5",
            "--modalities",
            "text,audio",
        ),
    )
    assert result.code == 0, result.err
    (request,) = result.engines[0].requests
    assert [rate for _, rate in request.media.audio] == [8000, 8000]
    assert dict(request.sampling) == {"max_tokens": 3, "temperature": 0.5}
    assert dict(request.diffusion) == {"num_inference_steps": 4, "guidance_scale": 0.5}
    assert (request.text.raw, request.speech.speaker, request.modalities) == (True, "Chelsie", {"text", "audio"})


def test_text_alone_touches_no_folder(omni: Omni) -> None:
    result = omni("hello", "--modalities", "text", "--output-dir", "/proc/nowhere")
    assert (result.code, result.out) == (0, "HELLO\n")
    assert names() == []
    (engine,) = result.engines
    assert [stage.name for stage in engine.config.stages] == ["thinker"], "no other stage is loaded"


def test_audio_alone_shows_no_text(omni: Omni) -> None:
    result = omni("hello", "--modalities", "audio")
    assert (result.code, result.out) == (0, "out/0.wav   0.50 s audio, 24 kHz\n")
    outputs = json.loads(omni("hello", "--modalities", "audio", "--json").out)["results"][0]["outputs"]
    assert [output["type"] for output in outputs] == ["audio"]


@pytest.mark.slow
def test_prompt_from_stdin(omni: Omni) -> None:
    assert omni("-", "--modalities", "text", stdin=b"from a pipe\n").out == "FROM A PIPE\n"
    assert omni("--modalities", "text", stdin=b"so too").out == "SO TOO\n"


def test_quiet_shows_results_only(omni: Omni) -> None:
    result = omni("hello", "-q")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("HELLO\n")


def test_verbose_shows_plain_progress(omni: Omni) -> None:
    result = omni("hello", "-v")
    assert "stage thinker (ar): ready in 0.25 s\n" in result.err
    assert "request 0: done\n" in result.err
    assert result.engines[0].verbose


def test_json_is_the_only_thing_on_stdout(omni: Omni) -> None:
    result = omni("hello there", "--json", "--seed", "3")
    document = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert (document["schema"], document["profile"], document["seed"]) == ("omni.generate/1", "tiny-omni", 3)
    (entry,) = document["results"]
    assert (entry["request_id"], entry["status"]) == ("0", "ok")
    assert entry["outputs"] == [
        {"type": "text", "text": "HELLO THERE", "token_ids": [0, 1], "finish_reason": "stop"},
        {"type": "audio", "path": "out/0.wav", "sample_rate": 24000, "num_samples": 12000, "finish_reason": "stop"},
    ]
    assert [stage["name"] for stage in entry["stages"]] == ["thinker", "talker", "token2wav"]
    assert [stage["load_s"] for stage in document["stages"]] == [0.25] * 3


@pytest.mark.parametrize(("word", "code"), [("input-error", 2), ("stage-error", 6)])
def test_failed_request(omni: Omni, word: str, code: int) -> None:
    result = omni(f"hello {word}")
    assert result.code == code
    assert result.err.count("error: ") == 1
    assert result.out == f"HELLO {word.upper()}\n"
    document = json.loads(omni(f"hello {word}", "--json").out)
    (entry,) = document["results"]
    assert entry["status"] == "error" and entry["message"]
    assert [output["type"] for output in entry["outputs"]] == ["text"], "what was finished is kept"


def test_failure_to_load(omni: Omni) -> None:
    result = omni("hello", "-p", "tiny-omni", "--model", "fail_start")
    assert result.code == 2
    assert result.err == "error: the checkpoint is broken\n\nhint: build it again\n"
    assert (
        json.loads(omni("hello", "-p", "tiny-omni", "--model", "fail_start", "--json").out)["error"]["kind"]
        == "checkpoint"
    )


def test_a_fault_of_the_engine_is_no_traceback(omni: Omni) -> None:
    result = omni("crash")
    assert result.code == ExitCode.RUN_FAILED
    assert "error: internal error: RuntimeError: boom" in result.err


def test_what_is_changed_about_requests_is_said_once_and_is_in_the_document(omni: Omni) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green")]
    frames[0].save("moving.gif", save_all=True, append_images=frames[1:])
    decoded = "the image file `moving.gif` has more than one frame or page; only the first is used"
    lines = ({"prompt": "noted", "image": "moving.gif"}, {"prompt": "noted too"}, {"prompt": "not"})
    for options in ((), ("--json",)):
        result = omni("--profile", "tiny-omni", "--requests", requests_file(*lines), *options)
        warnings = [line for line in result.err.splitlines() if line.startswith("warning:")]
        assert warnings == [
            f"warning: requests.jsonl:1: {decoded}", "warning: requests.jsonl:1: the image is larger"
        ]  # fmt: skip
    found = [entry.get("notes") for entry in json.loads(result.out)["results"]]
    assert found == [[decoded, "the image is larger"], ["the image is larger"], None]


# Mistakes that need no engine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["hi", "--height", "64"],
            "`--height` has no effect with profile `tiny-omni`, which makes text and audio",
        ),
        (["hi", "-p", "tiny-image", "--audio", "a.wav"], "`--audio` has no effect with profile `tiny-image`"),
        (["hi", "-p", "tiny-image", "--num-frames", "5"], "`--num-frames` has no effect with profile `tiny-image`"),
        (
            ["hi", "--modalities", "image"],
            "`--modalities`: profile `tiny-omni` makes text and audio, not `image`",
        ),
        (["hi", "--modalities", "sound"], "not `sound`"),
        (["hi", "--max-tokens", "0"], "`--max-tokens` must be from 1"),
        (["hi", "--temperature", "nan"], "`--temperature` must be a finite number"),
        (["hi", "--audio", "absent.wav"], "cannot open the audio file `absent.wav`: No such file"),
        (["hi", "--image", "empty"], "the image file `empty` is empty"),
        ([""], "the prompt is empty"),
        ([" \n"], "the prompt is empty"),
        ([], "there is no prompt"),
        (["hi", "--output-dir", "empty"], "cannot write `empty`"),
        (["--requests", "absent.jsonl"], "cannot open the requests file"),
        (["hi", "--requests", "empty"], "exclude each other"),
        (["--requests", "empty", "--audio", "a.wav"], "exclude each other"),
        (["--requests", "empty"], "is empty"),
        (["--timeout", "0", "hi"], "--timeout"),
    ],
)
def test_user_mistakes(omni: Omni, arguments: list[str], message: str) -> None:
    Path("empty").write_bytes(b"")
    result = omni(*arguments)
    assert result.code == ExitCode.USAGE
    assert message in result.err and result.err.startswith("error: ")
    assert (result.out, result.engines) == ("", []), "an engine was made for a request that cannot run"
    as_json = omni(*arguments, "--json")
    assert message in json.loads(as_json.out)["error"]["message"] or message == "--timeout"
    assert names() == ["empty"]


def test_prompt_on_stdin_that_is_not_text(omni: Omni) -> None:
    result = omni("-", stdin=b"\xff\xfe")
    assert (result.code, result.engines) == (2, [])
    assert "not UTF-8" in result.err


def test_empty_stdin(omni: Omni) -> None:
    result = omni(stdin=b"")
    assert result.code == 2 and "there is no prompt" in result.err and not result.engines
    (engine,) = omni("-p", "tiny-image", stdin=b"").engines
    assert engine.requests[0].prompt is None, "the pipeline decides whether it needs one"
    assert "the prompt is empty" in omni("-", stdin=b"").err
    assert omni("-", "-p", "tiny-image", stdin=b"").code == 0, "an empty prompt that is meant"


# Several requests


def test_requests_finish_in_any_order_and_are_listed_in_theirs(omni: Omni) -> None:
    path = requests_file({"prompt": "late one"}, {"prompt": "two", "request_id": "b", "seed": 5}, {"prompt": "three"})
    result = omni("--requests", path)
    assert result.code == 0
    assert result.out == (
        "[b]\nTWO\nout/b.wav   0.50 s audio, 24 kHz\n"
        "\n[2]\nTHREE\nout/2.wav   0.50 s audio, 24 kHz\n"
        "\n[0]\nLATE ONE\nout/0.wav   0.50 s audio, 24 kHz\n"
    )
    assert "3 requests in" in result.err and "all ok" in result.err
    document = json.loads(omni("--requests", path, "--json", "--overwrite").out)
    assert [entry["request_id"] for entry in document["results"]] == ["0", "b", "2"]
    assert names("out") == ["0.wav", "2.wav", "b.wav"]


def test_requests_run_concurrently(omni: Omni) -> None:
    path = requests_file(*({"prompt": "meet"} for _ in range(32)))
    result = omni("--requests", path, "--modalities", "text")
    assert result.code == 0 and result.engines[0].max_concurrency == 32


@pytest.mark.parametrize("number", [1, 2])
def test_verbose_shows_the_traceback_of_a_stage(omni: Omni, number: int) -> None:
    path = requests_file({"prompt": "stage-error"}, {"prompt": "two"})
    asked = ("stage-error",) if number == 1 else ("--requests", path)
    assert "the talker's traceback" in omni(*asked, "-v").err
    assert "the talker's traceback" not in omni(*asked).err


def test_bad_lines_fail_alone(omni: Omni) -> None:
    path = requests_file(
        {"prompt": "one"},
        "{broken",
        {"prompt": "x", "audio": "absent.wav"},
        {"prompt": "stage-error"},
        {"prompt": "two"},
    )
    result = omni("--requests", path, "--json")
    results = json.loads(result.out)["results"]
    assert [entry["status"] for entry in results] == ["ok", "error", "error", "error", "ok"]
    assert [entry["place"] for entry in results] == [f"requests.jsonl:{number}" for number in range(1, 6)]
    assert "not JSON" in results[1]["message"]
    assert "absent.wav" in results[2]["message"]
    assert results[3]["stage"] == "talker"
    assert result.code == ExitCode.RUN_FAILED
    for entry in results[1:4]:
        assert f"error: {entry['place']}: {entry['message']}" in result.err
    assert len(result.engines[0].requests) == 3


def test_only_user_mistakes_is_exit_code_2(omni: Omni) -> None:
    result = omni("--requests", requests_file({"prompt": "one"}, {"prompt": ""}))
    assert result.code == ExitCode.USAGE
    assert result.out.startswith("[0]\nONE\n")


def test_nothing_but_bad_lines_starts_no_engine(omni: Omni) -> None:
    path = requests_file({"prompt": ""}, {"promt": "a"})
    result = omni("--requests", path, "--json")
    assert result.code == ExitCode.USAGE
    document = json.loads(result.out)
    assert [entry["status"] for entry in document["results"]] == ["error", "error"]
    assert document["stages"] == []
    assert [engine.stages for engine in result.engines] in ([], [()])


def test_hostile_request_ids_stay_in_the_folder(omni: Omni) -> None:
    path = requests_file({"prompt": "a", "request_id": "../../evil"}, {"prompt": "b", "request_id": "/etc/passwd"})
    document = json.loads(omni("--requests", path, "--json", "--output-dir", "deep/out").out)
    written = {Path(entry["outputs"][1]["path"]) for entry in document["results"]}
    assert {path.parent for path in written} == {Path("deep/out")}
    assert all(path.is_file() for path in written)
    assert [entry["request_id"] for entry in document["results"]] == ["../../evil", "/etc/passwd"]


def test_a_folder_that_fails_midway_keeps_written_files(omni: Omni) -> None:
    Path("out/1.wav").mkdir(parents=True)
    path = requests_file({"prompt": "zero"}, {"prompt": "late one"})
    result = omni("--requests", path, "--json", "--overwrite")
    first, second = json.loads(result.out)["results"]
    assert result.code == ExitCode.USAGE
    assert result.err.count("error: ") == 1 and "cannot write `out/1.wav`" in result.err
    assert (first["status"], second["status"]) == ("ok", "error")
    assert Path("out/0.wav").is_file()


def test_input_beyond_the_memory_budget_is_decoded_again(omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.cli.generate.inputs.MAX_HELD_BYTES", 0)
    soundfile.write("a.wav", [0.5] * 100, 8000)
    result = omni("--requests", requests_file({"prompt": "a", "audio": "a.wav"}))
    assert result.code == 0
    ((samples, _),) = result.engines[0].requests[0].media.audio
    assert len(samples) == 100


# Ends that come early


def test_deadline(omni: Omni) -> None:
    path = requests_file({"prompt": "one"}, {"prompt": "two stall"})
    result = omni("--requests", path, "--json", "--timeout", "0.5")
    assert result.code == ExitCode.RUN_FAILED
    first, second = json.loads(result.out)["results"]
    assert (first["status"], second["status"]) == ("ok", "error")
    assert "not finish within 0.5 s" in second["message"]
    assert [output["type"] for output in second["outputs"]] == ["text"]
    assert result.err.count("error: ") == 1


def test_deadline_while_loading(omni: Omni) -> None:
    result = omni("hello", "-p", "tiny-omni", "--model", "stall_start", "--timeout", "0.2")
    assert result.code == ExitCode.RUN_FAILED
    assert "error: the run did not finish within 0.2 s" in result.err


def test_replicas_are_for_a_file(omni: Omni) -> None:
    result = omni("hello", "--replicas", "2")
    assert result.code == ExitCode.USAGE
    assert "--requests FILE.jsonl" in result.err


@needs_diffusers
def test_help_inputs_lists_what_a_pipeline_takes(omni: Omni, tmp_path: Path) -> None:
    model = pipeline_folder(tmp_path, "StableDiffusionInpaintPipeline")
    result = omni("--profile", "tiny-image", "--model", model, "--help-inputs", "--json")
    assert result.code == ExitCode.OK and not result.engines
    document = json.loads(result.out)
    assert document["pipeline"] == "StableDiffusionInpaintPipeline" and document["makes"] == ["image"]
    inputs = {row["name"]: row for row in document["inputs"]}
    assert inputs["mask_image"]["option"] == "--mask FILE" and not inputs["mask_image"]["required"]
    assert inputs["strength"] == {
        "option": "--strength S",
        "name": "strength",
        "type": "float",
        "default": "1.0",
        "required": False,
    }
    assert inputs["ip_adapter_image"]["option"] == "--arg ip_adapter_image=@FILE"
    assert inputs["num_inference_steps"]["default"] == "4", "the profile's value"
    assert "generator" not in inputs and inputs["latents"]["option"] == "--arg latents=@FILE.npy"


@needs_diffusers
def test_help_inputs_names_the_sound_of_a_video(omni: Omni, tmp_path: Path) -> None:
    result = omni("--model", pipeline_folder(tmp_path, "LTX2Pipeline"), "--help-inputs")
    assert result.code == ExitCode.OK and "makes video with sound\n" in result.out


def test_help_inputs_lists_the_fields_of_a_chain(omni: Omni) -> None:
    result = omni("--profile", "tiny-omni", "--help-inputs")
    assert result.code == ExitCode.OK and "tiny-omni (builtin:tiny-omni) makes text and audio" in result.out
    assert "--audio FILE" in result.out and "--mask" not in result.out


_BOTH = ("--image", "a.png", "--control-image", "a.png")
_WORDS = ("--arg", "task_prompt=a drawing", "--arg", "content_prompt=a cat")


@needs_diffusers
@pytest.mark.parametrize(
    ("pipeline", "arguments", "message"),
    [
        ("DDPMPipeline", ["a cat"], "the prompt has no effect"),
        ("DiTPipeline", [], "hint: it takes list[int]: `--arg class_labels=VALUE`"),
        ("StableDiffusionPipeline", ["a cat", "--arg", "eta=high"], "`eta` must be a finite number, not high"),
        ("StableDiffusionPipeline", ["a cat", "--arg", "eta=1", "--arg", "eta=2"], "`--arg` sets `eta` twice"),
        ("StableDiffusionPipeline", ["a cat", "--arg", "ip_adapter_image=@none.png"], "cannot open the image file"),
        ("StableDiffusionPipeline", ["a cat", "--arg", "prompt_embeds=@none.npy"], "cannot open the NumPy file"),
        ("StableDiffusionPipeline", ["a cat", "--image", "a.png"], "`--image` has no effect"),
        ("StableDiffusionAttendAndExcitePipeline", ["a cat"], "the argument `token_indices` is missing"),
        ("MarigoldDepthPipeline", [], "`--image` is missing"),
        ("VisualClozePipeline", [*_WORDS, "--arg", 'image=[["@no.png", null]]'], "cannot open the image file `no.png`"),
        ("VisualClozePipeline", [*_WORDS, "--arg", 'image=[["@a.png", "b"]]'], "`image` must be a tensor"),
        ("LTX2ConditionPipeline", ["a cat", "--arg", 'conditions={"frame": "@a.png"}'], "must be `{frames, index,"),
        ("LTX2ConditionPipeline", ["a cat", "--arg", 'conditions={"frames": "@no.png"}'], "cannot open the image file"),
        ("StableDiffusionControlNetPipeline", ["a cat", *_BOTH], "both set the argument `image`"),
        ("LLaDA2Pipeline", ["a cat"], "LLaDA2Pipeline cannot run: it makes text"),
    ],
)
def test_what_a_pipeline_cannot_take_is_refused_before_any_engine(
    omni: Omni, tmp_path: Path, pipeline: str, arguments: list[str], message: str
) -> None:
    result = omni("--profile", "tiny-image", "--model", pipeline_folder(tmp_path, pipeline), *arguments)
    assert result.code == ExitCode.USAGE and message in result.err and not result.engines


@pytest.mark.parametrize("size", [("--height", "33"), ("--width", "16")])
def test_a_chain_that_cannot_make_a_size_refuses_it_before_any_engine(omni: Omni, size: tuple[str, str]) -> None:
    result = omni("--profile", "tiny-glm-image", "a cat", *size)
    assert result.code == ExitCode.USAGE and "must be a multiple of 32" in result.err and not result.engines


@needs_diffusers
def test_a_pipeline_without_a_prompt_runs_without_one(omni: Omni, tmp_path: Path) -> None:
    model = pipeline_folder(tmp_path, "DDPMPipeline")
    result = omni("--profile", "tiny-image", "--model", model, "--arg", "batch_size=2")
    assert result.code == ExitCode.OK, result.err
    (request,) = result.engines[0].requests
    assert request.prompt is None and request.diffusion == {"batch_size": 2}
    Path("requests.jsonl").write_text('{"seed": 1}\n')
    assert omni("--profile", "tiny-image", "--model", model, "--requests", "requests.jsonl").code == ExitCode.OK


def broken_files() -> dict[str, bytes]:
    """Files that no image, mask or tensor can be read from, by name."""
    image = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(image, format="PNG")
    tensor = io.BytesIO()
    np.save(tensor, np.zeros((4, 4), np.float32))
    generator = random.Random(0)
    found = {"empty.png": b"", "noise.png": generator.randbytes(2000), "empty.npy": b"", "noise.npy": b"\x93NUMPY\x01"}
    for number in range(6):
        cut = generator.randrange(20, len(image.getvalue()) - 40)  # a PNG is whole without its last words
        found[f"cut{number}.png"] = image.getvalue()[:cut]
        found[f"cut{number}.npy"] = tensor.getvalue()[: generator.randrange(1, len(tensor.getvalue()))]
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    return {**found, "objects.npy": objects.getvalue(), "good.png": image.getvalue()}


STRANGE_VALUES = (
    "[" * 50_000,
    "{" * 50_000,
    '"',
    "1e999",
    "-0x1",
    "\x00",
    "[1,",
    "@",
    '["@a.png", 1]',
    "9" * 5000,
    "\ud800",
)
NAMES = ("image", "eta", "sigmas", "ip_adapter_image", "prompt_embeds", "x" * 5000, "__class__", "callback", "", "1")


def wrong_inputs() -> Iterator[list[str]]:
    """Options of an inpainting pipeline with one thing wrong each."""
    for name in broken_files():
        if name.endswith(".npy"):
            yield ["--image", "good.png", "--mask", "good.png", "--arg", f"prompt_embeds=@{name}"]
        elif name != "good.png":
            yield ["--image", name, "--mask", "good.png"]
            yield ["--image", "good.png", "--mask", name]
            yield ["--image", "good.png", "--mask", "good.png", "--arg", f"ip_adapter_image=@{name}"]
    masked = ["--image", "good.png", "--mask", "good.png"]
    yield [*masked, "--mask", "good.png"]
    yield [*masked, "--arg", "mask_image=@good.png"]
    yield [*masked, "--guidance-scale", "nan"]
    yield [*masked, "--seed", str(2**64)]
    yield [*masked, "--arg", "eta"]
    yield [*masked, "--arg", "=1"]
    yield [*masked, "--arg", "eta=[0.1, 0.2]"]
    yield [*masked, "--arg", 'sigmas=[0.1, "a"]']
    yield [*masked, "--arg", "num_images_per_prompt=[1]"]
    for value in STRANGE_VALUES:
        yield [*masked, "--arg", f"eta={value}"]
    for name in NAMES:
        yield [*masked, "--arg", f"{name}=high"]
    yield [*masked, *(word for n in range(50_000) for word in ("--arg", f"a{n}=1"))]
    yield [*masked, *(word for n in range(4_000) for word in ("--arg", f"a{n}=1"))]
    yield [*masked, *(word for n in range(4_000) for word in ("--arg", "eta=0.5"))]
    yield [*masked, "--arg", "timesteps=[" + "1," * 100_000 + '"a"]']


@needs_diffusers
def test_wrong_inputs_are_one_error_each_and_write_nothing(omni: Omni, tmp_path: Path) -> None:
    model = pipeline_folder(tmp_path, "StableDiffusionInpaintPipeline")
    for name, content in broken_files().items():
        Path(name).write_bytes(content)
    before = sorted(Path.cwd().rglob("*"))
    for arguments in wrong_inputs():
        result = omni(
            "a cat", "--profile", "tiny-image", "--model", model, "--set", "image.call.true_cfg_scale=null", *arguments
        )
        shown = " ".join(arguments)[:200]
        assert result.code == ExitCode.USAGE and not result.engines, (shown, result.err[:500])
        assert result.err.count("error:") == 1 and len(result.err) < 3000, shown
    assert sorted(Path.cwd().rglob("*")) == before


@needs_diffusers
def test_wrong_lines_fail_alone_and_before_any_engine(omni: Omni, tmp_path: Path) -> None:
    model = pipeline_folder(tmp_path, "StableDiffusionPipeline")
    lines = [
        '{"prompt": "a", "arg": {"eta": "high"}}',
        '{"prompt": "a", "arg": {"eta": NaN}}',
        '{"prompt": "a", "arg": {"sigmas": [[1]]}}',
        '{"prompt": "a", "arg": [["eta", 1]]}',
        '{"prompt": "a", "arg": {"ip_adapter_image": "none.png"}}',
        '{"prompt": "a", "arg": {"ip_adapter_image": "@none.png"}}',
        '{"prompt": ["a"]}',
        '{"prompt": "a", "arg": {"prompt": "b"}}',
    ]
    Path("lines.jsonl").write_text("\n".join(lines))
    result = omni("--profile", "tiny-image", "--model", model, "--requests", "lines.jsonl")
    assert result.code == ExitCode.USAGE and not result.engines[0].stages, "no stage was loaded"
    assert result.err.count("error:") == len(lines)


def broken_videos(folder: Path) -> list[str]:
    """Write files without a usable video: cut ones, one without frames, and none at all; returns their names."""
    import av

    whole = encode_video(iter([np.zeros((9, 32, 32, 3), np.uint8)]), 9, Fraction(8), None).content
    with av.open(folder / "still.mkv", "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width = stream.height = 32
        container.start_encoding()
    generator = random.Random(0)
    cuts = {f"cut{number}.mp4": whole[: generator.randrange(20, len(whole) - 40)] for number in range(6)}
    for name, content in {**cuts, "whole.mp4": whole, "empty.mp4": b"", "noise.mp4": generator.randbytes(2000)}.items():
        (folder / name).write_bytes(content)
    return [*cuts, "still.mkv", "empty.mp4", "noise.mp4", "none.mp4"]


@needs_diffusers
def test_wrong_videos_and_frame_rates_are_one_error_each_and_write_nothing(omni: Omni, tmp_path: Path) -> None:
    model = pipeline_folder(tmp_path, "WanVideoToVideoPipeline")
    wrong = [["--video", name] for name in broken_videos(tmp_path)]
    rates = ("0", "-1", "nan", "inf", "1e9", "1/0", "24/0.0", "1e-400", "9" * 5000, "", "fast", "1/3/5")
    wrong += [["--video", "whole.mp4", "--fps", rate] for rate in rates]
    wrong += [["--video", "whole.mp4", *words] for words in (["--height", "1.5"], ["--strength", "nan"])]
    before = sorted(Path.cwd().rglob("*"))
    for arguments in wrong:
        result = omni("a cat", "--profile", "tiny-video", "--model", model, *arguments)
        shown = " ".join(arguments)[:200]
        assert result.code == ExitCode.USAGE and not result.engines, (shown, result.err[:500])
        assert result.err.count("error:") == 1 and len(result.err) < 3000, (shown, result.err[:500])
    assert sorted(Path.cwd().rglob("*")) == before
