"""The GPU kit runs as a whole on small models and a CPU, and judges its goals as they are worded."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

from omni_cli.config.bundled import bundled_profiles
from omni_cli.config.families import published_needs
from omni_cli.config.loader import load_profile
from omni_cli.models.qwen3_tts.modules import SpeechDecoder
from omni_cli.models.qwen3_tts.tiny import _speech_tokenizer
from omni_cli.records.record import Sample, Variant, load_record

KIT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu"
MODULES = (
    "goals",
    "copies",
    "measure",
    "sides",
    "models",
    "kinds",
    "random_weights",
    "chain",
    "commands",
    "omni_checkpoint",
    "qwen3_tts",
)


@pytest.fixture(scope="module")
def goals() -> Iterator[ModuleType]:
    """The kit's own module; scripts find each other by their folder."""
    sys.path.insert(0, str(KIT))
    try:
        yield importlib.import_module("goals")
    finally:
        sys.path.remove(str(KIT))
        for name in MODULES:
            sys.modules.pop(name, None)


def run_script(name: str, *arguments: str) -> None:
    command = [sys.executable, str(KIT / name), "--tiny", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=KIT.parents[1], env=_environment())
    assert finished.returncode == 0, finished.stderr[-4000:]


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(KIT.parents[1])}


def loops(seconds: list[float]) -> Variant:
    samples = [
        Sample(block=block, position=0, e2e_s=1.0, metrics={"denoise_loop_s": value})
        for block, value in enumerate(seconds)
    ]
    return Variant(name="execution=cudagraph", samples=tuple(samples))


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ([1.03 + number % 5 / 1000 + number / 1e4 for number in range(12)], "met"),
        ([1.08 + number % 5 / 1000 + number / 1e4 for number in range(12)], "NOT MET"),
        ([1.00 + number % 5 / 20 + number / 1e4 for number in range(12)], "undecided"),
    ],
)
def test_the_busy_limit_is_judged_by_an_interval(goals, seconds, verdict):
    busy = goals.Busy(busy_s=1.0, kernels=1, wall_s=2.0)
    assert goals.near_busy("model", loops(seconds), busy).verdict == verdict


def test_missing_measurements_are_reported(goals):
    assert goals.near_busy("model", loops([1.0] * 8), None).verdict == "not measured"
    failed = Variant(name="execution=cudagraph", error="it broke")
    goal = goals.near_busy("model", failed, goals.Busy(1.0, 1, 2.0))
    assert (goal.verdict, goal.found) == ("not measured", "it broke")


def test_work_at_the_same_time_counts_once(goals):
    spans = [(0, 10), (5, 20), (40, 50), (42, 45)]
    busy = sys.modules["measure"].busy_in(spans[::-1])
    assert (busy.busy_s, busy.kernels, busy.wall_s) == (30e-9, 4, 50e-9)


@pytest.mark.slow
@pytest.mark.nightly
def test_diffusion_modes_on_a_cpu(tmp_path):
    run_script(
        "diffusion_modes.py", "--device", "cpu", "-o", str(tmp_path), "--only", "sana-0.6b", "--only", "token2wav",
        "--blocks", "1", "--copy-blocks", "1",
    )  # fmt: skip
    for model in ("sana-0.6b", "token2wav"):
        record = load_record(tmp_path / f"{model}.json")
        plain, eager, compiled, graph = record.variants
        assert plain.output_sha256 == eager.output_sha256, "the executor's image is the plain call's"
        assert eager.samples[0].execution_counters["execution=eager"]["eager_calls"] > 0
        assert compiled.effective["engagement"]["compiled_graphs"] > 0
        assert not graph.samples and "needs a CUDA device" in graph.error
    summary = (tmp_path / "summary.txt").read_text()
    assert "not measured copies       async hides at least 95%" in summary
    assert "NOT MET" not in summary and "\nmet" not in summary, "a CPU meets no goal of a GPU"
    assert load_record(tmp_path / "copies.json").variants and load_record(tmp_path / "batch.json").variants


@pytest.mark.slow
@pytest.mark.nightly
def test_other_kinds_of_pipelines_on_a_cpu(tmp_path):
    run_script("diffusion_modes.py", "--kinds", "--device", "cpu", "-o", str(tmp_path), "--blocks", "1")
    records = [load_record(path) for path in sorted(tmp_path.glob("*.json"))]
    assert len(records) == 12
    for record in records:
        plain, eager, _, graph = record.variants
        assert plain.output_sha256 == eager.output_sha256, "the executor's output is the plain call's"
        assert eager.samples and not graph.samples and "needs a CUDA device" in graph.error


@pytest.mark.nightly
@pytest.mark.slow
def test_ar_modes_on_a_cpu(tmp_path):
    run_script(
        "ar_modes.py", "-o", str(tmp_path), "--blocks", "1", "--num-requests", "2", "--input-len", "16",
        "--output-len", "4", "--kv-cache", str(64 << 20),
    )  # fmt: skip
    with_rows, without = load_record(tmp_path / "ar.json").variants
    assert with_rows.output_sha256 == without.output_sha256, "hidden states change no token"
    assert with_rows.samples[0].execution_counters["thinker"]["copies"] > 0
    assert without.samples[0].execution_counters["thinker"]["copies"] == 0


def test_the_codec_of_qwen3_tts_is_as_large_as_in_its_releases(goals):
    sizes = importlib.import_module("qwen3_tts").released()
    with torch.device("meta"):
        codec = SpeechDecoder(Qwen3OmniMoeCode2WavConfig(**_speech_tokenizer(sizes).config["config"]["decoder_config"]))
    count = sum(tensor.numel() for tensor in codec.state_dict().values())
    needs = published_needs("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice")
    assert count == pytest.approx(needs.parameters["code2wav"], rel=0.005)


def test_each_profile_for_a_gpu_has_a_command(goals):
    commands = importlib.import_module("commands")
    for_gpu = {name for name in bundled_profiles() if not name.startswith(("tiny-", "small-"))}
    assert for_gpu == commands.COMMANDS.keys()
    for profile, command in commands.FOLDERS.items():
        assert "--model folder" in commands.COMMANDS[profile]
        script, (_, _, size) = commands.arguments(command)
        assert size in importlib.import_module(script.removesuffix(".py")).SIZES


def test_each_command_is_accepted_and_its_configuration_loads(goals, monkeypatch):
    """A chain's profile takes the kit's settings, and gives every KV cache a size, so that stages load together."""
    commands, sides = importlib.import_module("commands"), importlib.import_module("sides")
    pipelines = importlib.import_module("models").models(tiny=False) | importlib.import_module("kinds").kinds(
        tiny=False
    )
    for profile, command in commands.COMMANDS.items():
        script, arguments = commands.arguments(command)
        module = importlib.import_module(script.removesuffix(".py"))
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        options = module._options()
        if script == "chain.py":
            model = module.MODELS[options.chain]
            assert model.profiles[1] == profile
            config = module._config(model, options.model, options)
            assert [stage.sampling.min_tokens for stage in config.stages[:2]] == [128, model.codes]
            assert all(stage.kv_cache_memory_bytes for stage in config.stages[:2])
        elif script == "vibevoice.py":
            (stage,) = module._config(Path("builtin:tiny-vibevoice"), "none", options).stages
            assert (stage.max_num_seqs, stage.kv_cache_memory_bytes) == (32, options.kv_cache)
        elif script == "qwen3_tts.py":
            talker, _ = module.load_config(Path("builtin:tiny-qwen3-tts"), options).stages
            assert talker.sampling.max_tokens == options.frames + 1 and talker.kv_cache_memory_bytes
        else:
            (name,) = options.only
            stage = sides.stage_of(pipelines[name], execution=load_profile(profile).stages[-1].execution)
            assert {**stage.call, "height": stage.height, "width": stage.width}.items() >= pipelines[name].shape.items()


@pytest.mark.nightly
@pytest.mark.slow
def test_the_chain_of_qwen3_omni_on_a_cpu(tmp_path):
    run_script(
        "chain.py", "qwen3-omni", "-o", str(tmp_path), "--clients", "2", "--rounds", "1", "--text-tokens", "12",
        "--codes", "20", "--stream", "on",
    )  # fmt: skip
    (variant,) = load_record(tmp_path / "qwen3-omni.json").variants
    (sample,) = variant.samples
    parts = [sample.metrics[f"talker_{name}_s"] for name in ("backbone", "predictor", "rest")]
    assert sum(parts) == pytest.approx(sample.metrics["talker_step_s"]) and min(parts[:2]) > 0
    # The last of 20 frames ends the speech; the codec's first samples are fewer than a whole frame's.
    assert 2 * 18 * 0.08 < sample.work["audio_s"] < 2 * 19 * 0.08 and sample.work["output_tokens"] == 24
    assert sample.work["input_tokens"] == 2 * 16, "the chat template adds eight tokens"
    assert sample.execution_counters["talker"]["predictor_eager_calls"] > 0 and sample.metrics["ttfp_s"] < sample.e2e_s


@pytest.mark.nightly
@pytest.mark.slow
def test_vibevoice_beside_transformers_on_a_cpu(tmp_path):
    folder = tmp_path / "model"
    run_script(
        "vibevoice.py", "-o", str(tmp_path), "--folder", str(folder), "--clients", "1", "2", "--frames", "6",
        "--rounds", "1", "--kv-cache", str(64 << 20),
    )  # fmt: skip
    variants = {variant.name: variant for variant in load_record(tmp_path / "vibevoice.json").variants}
    assert variants.keys() == {"clients=1,side=eager", "clients=1,side=transformers", "clients=2,side=eager"}
    for name, variant in variants.items():
        (sample,) = variant.samples
        assert sample.work["audio_s"] == pytest.approx(6 * 3200 / 24_000 * variant.settings["clients"]), name
        assert sample.metrics["rtf"] > 0 and sample.metrics["ttfp_s"] <= sample.e2e_s
    (eager,) = variants["clients=2,side=eager"].samples
    assert eager.execution_counters["speaker"]["predictor_eager_calls"] >= 2 * 6
    parts = [eager.metrics[f"{name}_s"] for name in ("backbone", "head", "rest")]
    assert sum(parts) == pytest.approx(eager.metrics["step_s"]) and min(parts[:2]) > 0
    run_script("vibevoice_frame.py", str(folder), "-o", str(tmp_path), "--batches", "2")
    lines = (tmp_path / "vibevoice-frame.txt").read_text().splitlines()
    assert [line.split()[2] for line in lines] == ["branch", "denoise", "decode", "encode", "speak"]


@pytest.mark.nightly
@pytest.mark.slow
def test_codec_calls_on_a_cpu(tmp_path):
    run_script("codec_calls.py", "-o", str(tmp_path), "--batches", "2")
    summary = (tmp_path / "codec-calls.txt").read_text()
    assert "code predictor, one frame" in summary and "code2wav, 12 frames" in summary and summary.count("eager") == 2
