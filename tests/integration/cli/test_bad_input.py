"""Mistakes of users, on the real command: one clear error each, the right exit code, nothing left behind.

Where a mistake is found before anything starts, the command runs in the process of the test; one case of each kind runs
in a process of its own, too.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.in_process import run_here
from support.omni_process import SHORT, Ended, OmniProcess, run_omni

USAGE, FAILED, CLOSED_PIPE = 2, 6, 141

# Arguments; the files that they name (content by name) lie in the folder that the command runs in.
FILES = {
    "text.txt": b"this is neither sound nor image\n",
    "empty": b"",
    "bad.yaml": b"version: 1\nname: x\ndtype: float32\nmodel: builtin:tiny-omni\n"
    b"stages:\n  a: {kind: arr, backend: vllm}\n",
    "not.yaml": b"stages: [1, 2\n",
    "bad.jsonl": b'{"prompt": ""}\nnot json\n{"prompt": "hi", "speaker": 3}\n{"prompt": "hi", "audio": "text.txt"}\n',
    "head.wav": b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00",
}
VOICED = ("-p", "tiny-vibevoice", "--voice")
WITHOUT_ENGINE = {
    "unknown profile": (["hi", "-p", "tiny-omny"], "tiny-omny"),
    "wrong kind of stage": (["hi", "-p", "bad.yaml"], "bad.yaml:6:13: invalid value for `kind`"),
    "profile that is not YAML": (["hi", "-p", "not.yaml"], "not.yaml:"),
    "profile that is a folder": (["hi", "-p", "./"], "./"),
    "unknown stage in --set": (["hi", "--set", "thinkr.max_num_seqs=4"], "unknown stage `thinkr`"),
    "unknown key in --set": (["hi", "--set", "thinker.max_num_seq=4"], "max_num_seq"),
    "impossible value in --set": (["hi", "--set", "thinker.max_num_seqs=0"], "max_num_seqs"),
    "--set without a value": (["hi", "--set", "thinker"], "KEY=VALUE"),
    "missing checkpoint": (["hi", "--model", "/no/such/folder"], "no such model folder"),
    "checkpoint that is a file": (["hi", "--model", "text.txt"], "is a file"),
    "unknown built-in model": (["hi", "--model", "builtin:tiny"], "no such built-in model: `tiny`"),
    "checkpoint that is an empty folder": (["hi", "--model", "."], "is not a checkpoint"),
    "empty prompt": ([""], "the prompt is empty"),
    "blank prompt": (["  \n "], "the prompt is empty"),
    "missing audio": (["hi", "--audio", "none.wav"], "none.wav`: No such file"),
    "audio that is text": (["hi", "--audio", "text.txt"], "cannot read the audio file"),
    "audio that is empty": (["hi", "--audio", "empty"], "is empty"),
    "audio that is only a header": (["hi", "--audio", "head.wav"], "audio file `head.wav`"),
    "audio without samples": (["hi", "--audio", "silent.wav"], "no samples"),
    "audio that is a folder": (["hi", "--audio", "."], "is a folder"),
    "voice that is text": (["hi", *VOICED, "text.txt"], "cannot read the audio file `text.txt`"),
    "voice that is empty": (["hi", *VOICED, "./empty"], "the audio file `empty` is empty"),
    "voice without a sound": (["hi", *VOICED, "still.wav"], "the audio file `still.wav` has no sound"),
    "voice that is missing": (["hi", *VOICED, "none.wav"], "none.wav`: No such file"),
    "voice of a model that clones none": (["hi", "--voice", "still.wav"], "`tiny-omni` does not clone voices"),
    "words of no voice": (["hi", "-p", "tiny-vibevoice", "--ref-text", "hello"], "`--ref-text` has no effect"),
    "words that the model does not use": (
        ["hi", *VOICED, "still.wav", "--ref-text", "a"],
        "`--ref-text` has no effect",
    ),
    "image that is text": (["hi", "--image", "text.txt"], "its format is not recognised"),
    "image that is empty": (["hi", "--image", "empty"], "is empty"),
    "image with a profile without eyes": (["hi", "-p", "tiny-image", "--image", "text.txt"], "no effect"),
    "no tokens": (["hi", "--max-tokens", "0"], "`--max-tokens` must be from 1"),
    "temperature below zero": (["hi", "--temperature", "-1"], "`--temperature` must be from 0"),
    "temperature that is not a number": (["hi", "--temperature", "nan"], "`--temperature` must be a finite number"),
    "unknown modality": (["hi", "--modalities", "smell"], "`smell`"),
    "modality that is not made": (["hi", "--modalities", "image"], "makes text and audio"),
    "no time": (["hi", "--timeout", "0"], "`--timeout`"),
    "prompt and requests": (["hi", "--requests", "bad.jsonl"], "exclude each other"),
    "missing requests": (["--requests", "none.jsonl"], "none.jsonl"),
    "empty requests": (["--requests", "empty"], "is empty"),
    "unknown option": (["hi", "--modle", "x"], "did you mean `--model`?"),
    "output folder that is a file": (
        ["hi", "--output-dir", "text.txt"],
        "cannot write `text.txt`: a file has the name of the folder",
    ),
    "output folder below a file": (["hi", "--output-dir", "text.txt/out"], "cannot write `text.txt/out`"),
}


@pytest.fixture
def folder(folder: Path) -> Path:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    with wave.open(str(folder / "silent.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
    with wave.open(str(folder / "still.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(32_000))
    return folder


def check_refused(ended: Ended, code: int, *parts: str, as_json: bool) -> None:
    ended.check_clean()
    ended.check_error(code, *parts)
    assert ended.output_files == ()
    if as_json:
        error = ended.document["error"]
        assert (ended.document["schema"], error["exit_code"]) == ("omni.error/1", code)
        assert ended.err.startswith(f"error: {error['message']}")
    else:
        assert ended.out == ""


@pytest.mark.parametrize("case", WITHOUT_ENGINE)
def test_refused_before_anything_is_started(case: str, folder: Path) -> None:
    arguments, part = WITHOUT_ENGINE[case]
    ended = run_here(folder, "generate", *arguments, "--json")
    check_refused(ended, USAGE, part, as_json=True)
    assert not ended.started_others


@pytest.mark.parametrize("case", ["unknown stage in --set", "missing checkpoint", "audio that is text", "empty prompt"])
def test_refused_in_plain_text_by_the_real_process(case: str, folder: Path) -> None:
    arguments, part = WITHOUT_ENGINE[case]
    check_refused(run_omni(folder, "generate", *arguments), USAGE, part, as_json=False)


@pytest.mark.parametrize(
    ("text", "part"), [("", "the prompt is empty"), ("\n", "the prompt is empty"), ("x" * (17 << 20), "longer than")]
)
def test_bad_prompt_on_stdin(text: str, part: str, folder: Path) -> None:
    process = OmniProcess(folder, "generate", "-", "--json", stdin=subprocess.PIPE)
    check_refused(process.end(text), USAGE, part, as_json=True)


def test_requests_file_with_only_bad_lines(folder: Path) -> None:
    ended = run_here(folder, "generate", "--requests", "bad.jsonl", "--json")
    ended.check_clean()
    assert (ended.code, ended.started_others, ended.output_files) == (USAGE, False, ())
    assert [result["status"] for result in ended.document["results"]] == ["error"] * 4
    lines = [line for line in ended.err.splitlines() if line.startswith("error:")]
    assert [line.split(":")[:3] for line in lines] == [["error", " bad.jsonl", str(n)] for n in (1, 2, 3, 4)]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_with_vocabulary(path: Path) -> None:
    for name in (path.name, "vocab.json", "merges.txt"):
        path.with_name(name).unlink()


def garble(path: Path) -> None:
    path.write_bytes(b"{ this is not it")


def rename_architecture(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["LlamaForCausalLM"]}))


def leave_out(path: Path) -> None:
    """Remove a component and its name in the index."""
    remove(path)
    index = path.with_name("model_index.json")
    index.write_text(
        json.dumps({name: part for name, part in json.loads(index.read_text()).items() if name != path.name})
    )


def behead(path: Path) -> None:
    weights = {name: weight for name, weight in load_file(path).items() if not name.startswith("lm_head.")}
    save_file(weights, path, metadata={"format": "pt"})


BROKEN_CHECKPOINTS = {
    "weights cut short": ("tiny-omni", "model.safetensors", truncate, "model.safetensors` has "),
    "weights missing": ("tiny-omni", "model.safetensors", remove, "has no weights"),
    "weights that are text": ("tiny-omni", "model.safetensors", garble, "is not a safetensors file"),
    "config missing": ("tiny-omni", "config.json", remove, "is not a checkpoint"),
    "config that is not JSON": ("tiny-omni", "config.json", garble, "is not valid JSON"),
    "another architecture": ("tiny-omni", "config.json", rename_architecture, "is a LlamaForCausalLM"),
    "no speakers": ("tiny-omni", "spk_dict.pt", remove, "has no spk_dict.pt"),
    "no tokenizer": ("tiny-omni", "tokenizer.json", remove_with_vocabulary, "has no tokenizer.json"),
    "no processor": ("tiny-omni", "processor_config.json", remove, "has no processor_config.json"),
    "tokenizer that is not JSON": ("tiny-omni", "tokenizer.json", garble, "tokenizer.json` is not valid JSON"),
    "component's tokenizer that is not JSON": ("tiny-image", "tokenizer/tokenizer.json", garble, "is not valid JSON"),
    "component missing": ("tiny-image", "vae", remove, "has no component `vae`"),
    "component's weights cut short": (
        "tiny-image",
        "transformer/diffusion_pytorch_model.safetensors",
        truncate,
        "diffusion_pytorch_model.safetensors` has ",
    ),
    "component's config that is not JSON": ("tiny-image", "vae/config.json", garble, "is not valid JSON"),
    "no AR model": ("tiny-glm-image", "vision_language_encoder", remove, "no component `vision_language_encoder`"),
    "no glyph encoder": (
        "tiny-glm-image",
        "text_encoder",
        leave_out,
        "has no text_encoder/config.json, which stage `d",
    ),
    "no head of the AR model": (
        "tiny-glm-image",
        "vision_language_encoder/model.safetensors",
        behead,
        "vision_language_encoder` has no weights called `lm_head.*`, which stage `prior` needs",
    ),
    "no tokenizer of the AR model": (
        "tiny-glm-image",
        "processor/tokenizer.json",
        remove,
        "has no processor/tokenizer.json, which stage `prior` needs",
    ),
    "index that is not JSON": ("tiny-image", "model_index.json", garble, "is not valid JSON"),
}


@pytest.mark.parametrize("case", BROKEN_CHECKPOINTS)
def test_broken_checkpoint(case: str, folder: Path, copy_of: Callable[[str], Path]) -> None:
    name, file, damage, part = BROKEN_CHECKPOINTS[case]
    model = copy_of(name)
    damage(model / file)
    ended = run_here(folder, "generate", "hi", "-p", name, "--model", str(model), "--json")
    check_refused(ended, USAGE, part, as_json=True)
    assert not ended.started_others


@pytest.mark.parametrize(("profile", "model"), [("tiny-omni", "tiny-image"), ("tiny-image", "tiny-omni")])
def test_checkpoint_of_another_profile(profile: str, model: str, folder: Path, copy_of: Callable[[str], Path]) -> None:
    ended = run_here(folder, "generate", "hi", "-p", profile, "--model", str(copy_of(model)), "--json")
    check_refused(ended, USAGE, "diffusers pipeline", as_json=True)
    assert not ended.started_others


OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
def test_repo_that_cannot_be_reached(folder: Path) -> None:
    environment = {**OFFLINE, "HF_HOME": str(folder / "hub")}
    ended = run_omni(folder, "generate", "hi", "--model", "some/repo", "--json", environment=environment)
    check_refused(ended, USAGE, "`some/repo` is not in the cache", as_json=True)


def test_repo_of_a_profile_that_cannot_be_reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ended = run_here(folder, "generate", "hi", "-p", "z-image-turbo", "--json")
    check_refused(ended, USAGE, "`Tongyi-MAI/Z-Image-Turbo` is not in the cache", as_json=True)
    assert not ended.started_others


@pytest.mark.slow
def test_repo_in_the_cache_of_the_hub(folder: Path, copy_of: Callable[[str], Path]) -> None:
    """No error: a repo id that was downloaded earlier works without a network."""
    repo = folder / "hub" / "hub" / "models--some--repo"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    (repo / "snapshots").mkdir()
    copy_of("tiny-image").rename(repo / "snapshots" / ("0" * 40))
    environment = {**OFFLINE, "HF_HOME": str(folder / "hub")}
    ended = run_omni(
        folder, "generate", "hi", "-p", "tiny-image", "--model", "some/repo", "--json", environment=environment
    )
    ended.check_clean()
    assert (ended.code, ended.err, ended.output_files) == (0, "", ("0.png",))


@pytest.mark.nightly
@pytest.mark.slow
def test_speakers_that_only_loading_shows_to_be_broken(folder: Path, copy_of: Callable[[str], Path]) -> None:
    model = copy_of("tiny-omni")
    garble(model / "spk_dict.pt")
    ended = run_omni(folder, "generate", "hi", "-p", "tiny-omni", "--model", str(model), "--json")
    check_refused(ended, USAGE, "spk_dict.pt", as_json=True)


@pytest.mark.slow
def test_bad_requests_fail_alone(folder: Path) -> None:
    """Mistakes that only the model finds: one run, one error per line, and the good line in between succeeds."""
    lines = [
        {"prompt": "word " * 3000},
        {"prompt": "hello", "request_id": "good"},
        {"prompt": "hello", "speaker": "Nobody"},
        {"prompt": "hello", "sampling": {"min_tokens": 60}},
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended = run_omni(folder, "generate", "--requests", "requests.jsonl", *SHORT, "--json")
    ended.check_clean()
    results = ended.document["results"]
    assert [result["status"] for result in results] == ["error", "ok", "error", "error"]
    assert "2048" in results[0]["message"]  # the longest that the model takes
    assert "thinker.max_model_len=N" in ended.err
    assert "Nobody" in results[2]["message"]
    assert "min_tokens" in results[3]["message"]
    assert (ended.code, ended.output_files) == (USAGE, ("good.wav",))
    assert ended.err.count("error:") == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "part"), [("1", "not finish within 1 s"), ("--num-inference-steps", "not finish")]
)
def test_deadline(argument: str, part: str, folder: Path) -> None:
    """Once during the imports, once, with these done, while a stage runs: its thousand steps last longer."""
    options = ["--timeout", "1"] if argument == "1" else ["--timeout", "10", argument, "1000", "--height", "1024"]
    options += [] if argument == "1" else ["--width", "1024"]
    ended = run_omni(folder, "generate", "hi", "-p", "tiny-image", *options, "--json", warm=argument != "1")
    ended.check_clean()
    ended.check_error(FAILED, part)
    document = ended.document
    reached = document["error"]["kind"] if argument == "1" else document["results"][0]["status"]
    assert reached == ("deadline" if argument == "1" else "error")
    assert ended.output_files == ()


def test_output_folder_without_permission(folder: Path) -> None:
    place = folder / "read-only"
    place.mkdir(mode=0o555)
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        # Root without the right to override permissions, which is what other users are.
        prefix = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")
        if shutil.which("setpriv") is None:
            pytest.skip("no setpriv, and root may write anywhere")
    ended = run_omni(folder, "generate", "hi", "--output-dir", "read-only/out", "--json", prefix=prefix)
    check_refused(ended, USAGE, "Permission denied", as_json=True)
    assert not ended.started_others
    assert list(place.iterdir()) == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB that is full."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    (place / "filler").write_bytes(bytes(64 << 10))
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_full_disk(folder: Path, full_disk: Path) -> None:
    ended = run_omni(folder, "generate", "hi", "--output-dir", str(full_disk), "--json")
    check_refused(ended, USAGE, "No space left on device", as_json=True)
    assert not ended.started_others
    assert [path.name for path in full_disk.iterdir()] == ["filler"]


@pytest.mark.nightly
@pytest.mark.slow
def test_disk_that_is_full_when_the_answer_comes(folder: Path) -> None:
    """Files are limited to 8 KiB, which is too little for an image. A request with a text-only answer succeeds."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 10, 8 << 10))

    arguments = ("a", "-p", "tiny-image", "--height", "128", "--width", "128", "--json")
    ended = run_omni(folder, "generate", *arguments, preexec_fn=limit)
    ended.check_clean()
    ended.check_error(USAGE, "File too large")
    assert ended.output_files == ()
    assert [result["status"] for result in ended.document["results"]] == ["error"]


@pytest.mark.slow
def test_stdout_without_a_reader(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = OmniProcess(folder, "generate", "hi", "--modalities", "text", *SHORT, stdout=writer, warm=True)
    os.close(writer)
    ended = process.end()
    ended.check_clean()
    assert ended.code == CLOSED_PIPE
    assert "error:" not in ended.err


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout(folder: Path) -> None:
    """While text is streamed: one error, and finished files are kept."""
    with Path("/dev/full").open("w") as full:
        ended = OmniProcess(folder, "generate", "hi", *SHORT, stdout=full, warm=True).end()
    ended.check_clean()
    assert ended.code == USAGE
    assert ended.err.count("error:") == 1
    assert ended.err.endswith("error: cannot write to standard output: No space left on device\n")


def test_a_deleted_current_folder(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    prefix = ("sh", "-c", f'rmdir "{gone}" && exec "$0" "$@"')
    ended = run_omni(
        folder, "generate", "a", "-p", "tiny-image", "--output-dir", str(folder / "out"), cwd=gone, prefix=prefix
    )
    check_refused(ended, USAGE, "the current folder no longer exists", as_json=False)
