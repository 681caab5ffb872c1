"""A profile is judged by the memory that its weights and caches take, on planted machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machine_facts import facts
from support.profile_text import make_config

from omni_cli.config.bundled import bundled_profiles
from omni_cli.config.families import published_needs
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, EngineConfig
from omni_cli.core.machine import Folder, Gpu, Gpus, HostMemory
from omni_cli.measure.doctor import report
from omni_cli.measure.doctor.checkup import MachineFacts, ProfileVerdict, judge_profile
from omni_cli.measure.doctor.packages import TorchProbe

GIB = 1 << 30
LARGE = HostMemory(2000 * GIB, 2000 * GIB, None)


def machine(
    *gpu_gib: float, host: HostMemory = LARGE, free_gib: float | None = None, hub: Path = Path("/hub")
) -> MachineFacts:
    """A machine with GPUs of these sizes, of which `free_gib` are free."""
    gpus = [
        Gpu(index, "GPU", int(size * GIB), int((size if free_gib is None else free_gib) * GIB), f"GPU-{index}a")
        for index, size in enumerate(gpu_gib)
    ]
    return replace(facts(Gpus(tuple(gpus), "570")), memory=host, hub_cache=Folder(hub, 1000 * GIB, writable=True))


def host(total_gib: float, free_gib: float | None = None, limit_gib: float | None = None) -> HostMemory:
    limit = None if limit_gib is None else int(limit_gib * GIB)
    free = min(total_gib, limit_gib or total_gib) if free_gib is None else free_gib
    return HostMemory(int(total_gib * GIB), int(free * GIB), limit)


def judge(profile: str | EngineConfig, where: MachineFacts, *overrides: str) -> ProfileVerdict:
    config = load_profile(profile, list(overrides)) if isinstance(profile, str) else profile
    return judge_profile(config, where, [])


def needed(verdict: ProfileVerdict) -> dict[int | None, float]:
    """GiB by GPU, None for the host."""
    assert verdict.memory is not None
    return {use.gpu: round(use.needed_bytes / GIB, 1) for use in verdict.memory}


def write_weights(folder: Path, tensors: Mapping[str, tuple[str, int]], name: str = "model.safetensors") -> None:
    """A safetensors file of (type, number of values) by name, whose data are a hole in the file."""
    sizes = {"F32": 4, "BF16": 2, "U8": 1}
    header, end = {}, 0
    for tensor, (dtype, values) in tensors.items():
        header[tensor] = {"dtype": dtype, "shape": [values], "data_offsets": [end, end + values * sizes[dtype]]}
        end += values * sizes[dtype]
    content = json.dumps(header).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.truncate(8 + len(content) + end)


def language_model(folder: Path, tensors: Mapping[str, tuple[str, int]]) -> Path:
    write_weights(folder, tensors)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}))
    return folder


def text_config(model: Path | str, dtype: str = "bfloat16", **keys: Any) -> EngineConfig:
    return make_config("text", str(model), ARStageConfig.create("model", **keys), dtype=dtype)


def test_every_bundled_profile_of_a_repository_states_what_it_needs() -> None:
    models = [load_profile(name).model for name in bundled_profiles()]
    assert [model for model in models if not model.startswith("builtin:") and published_needs(model) is None] == []


@pytest.mark.parametrize("name", bundled_profiles())
def test_every_bundled_profile_fits_on_a_large_device_and_into_no_small_memory(name: str) -> None:
    assert judge(name, machine(141)).missing == ()
    assert "of memory (this machine has 0.5 GiB)" in judge(name, machine(host=host(0.5))).missing[-1]


def test_65_gigabytes_do_not_fit_on_a_cpu_machine_with_24() -> None:
    verdict = judge("ltx-2", machine(host=host(24)))
    assert verdict.missing == ("at least 63.6 GiB of memory (this machine has 24.0 GiB)",)
    assert report.status(verdict) == "missing"
    assert judge("ltx-2", machine(host=host(80))).missing == ()


@pytest.mark.parametrize(
    ("memory", "has"),
    [
        (host(128, limit_gib=16), "this container has 16.0 GiB"),
        (host(128, free_gib=20), "this machine has 128.0 GiB, 20.0 GiB of it free"),
        (host(128, free_gib=20, limit_gib=100), "this container has 100.0 GiB, 20.0 GiB of it free"),
    ],
)
def test_what_a_container_allows_and_others_leave_counts(memory: HostMemory, has: str) -> None:
    assert judge("ltx-2", machine(host=memory)).missing == (f"at least 63.6 GiB of memory ({has})",)


def test_a_key_that_needs_a_device_is_named_on_a_machine_without_one() -> None:
    (missing,) = judge("glm-image", machine()).missing
    assert missing == "a CUDA device (`prior.cudagraph_mode: full_and_piecewise`)"
    assert judge("tiny-omni", machine(), "mps=true").missing == ("a CUDA device (`mps: true`)",)


@pytest.mark.parametrize(
    ("profile", "overrides", "expected"),
    [
        ("wan2.2-t2v", (), 64.6),
        ("wan2.2-t2v", ("dtype=float32",), 128.7),
        ("wan2.2-t2v", ("video.torch_dtype={text_encoder: float32}",), 75.2),
        ("wan2.2-t2v", ("video.offload=model",), 27.2),
        ("wan2.2-t2v", ("video.offload=group", "video.exclude_modules=[text_encoder]"), 11.2),
        ("wan2.2-t2v", ("video.offload=sequential",), 0.6),
        ("wan2.2-t2v", ("video.quantization=int8_weight_only",), 38.0),
        ("wan2.2-t2v", ("video.quantization=bitsandbytes_nf4",), 24.7),
        # A KV cache of given size; a share of the device, which must be free.
        ("qwen2.5-omni-7b", (), 37.9),
        ("glm-image", (), 50.7),
    ],
)
def test_settings_that_change_what_a_device_must_hold(
    profile: str, overrides: tuple[str, ...], expected: float
) -> None:
    verdict = judge(profile, machine(80), *overrides)
    assert needed(verdict)[0] == expected
    assert bool(verdict.missing) == (expected > 80)
    assert f"needs at least {expected} GiB of GPU 0's 80.0 GiB" in report.text(facts(), [], [verdict]) or expected > 80


def test_an_offload_moves_the_weights_to_the_host() -> None:
    verdict = judge("wan2.2-t2v", machine(80, host=host(32)), "video.offload=model")
    assert verdict.missing == ("at least 64.6 GiB of memory (this machine has 32.0 GiB)",)


def test_a_share_that_is_too_small_for_its_weights() -> None:
    assert judge("glm-image", machine(40)).missing == (
        "a larger gpu_memory_utilization of stage `prior` (its weights take 18.8 GiB, its share of GPU 0 is 18.0 GiB)",
    )
    (missing,) = judge("qwen3-omni-30b-a3b", machine(40)).missing
    assert missing.startswith("at least 69.")


def test_memory_that_other_programs_hold_is_not_free() -> None:
    assert judge("qwen-image", machine(80, free_gib=30)).missing == (
        "at least 54.3 GiB of memory (GPU 0 has 80.0 GiB, 30.0 GiB of it free)",
    )


def test_the_ranks_of_a_stage_share_its_weights(tmp_path: Path) -> None:
    model = language_model(tmp_path / "model", {"w": ("BF16", 30 * GIB)})
    one = text_config(model, kv_cache_memory_bytes=4 * GIB)
    assert judge(one, machine(48, 48)).missing == ("at least 64.6 GiB of memory (GPU 0 has 48.0 GiB)",)
    two = text_config(model, kv_cache_memory_bytes=4 * GIB, tensor_parallel_size=2)
    assert needed(judge(two, machine(48, 48))) == {None: 1.2, 0: 34.6, 1: 34.6}
    assert judge(two, machine(48)).missing == ("2 CUDA devices for stage `model` (1 visible)",)
    assert needed(judge(two, machine())) == {None: 69.2}
    pictures = judge("wan2.2-t2v", machine(80, 80), "video.context_parallel.ulysses_degree=2")
    assert needed(pictures) == {None: 1.2, 0: 64.6, 1: 64.6}  # each has all weights


def test_stages_on_devices_of_their_own() -> None:
    apart = ("thinker.devices='1'", "talker.devices='GPU-2a'", "token2wav.devices='7'")
    verdict = judge("qwen2.5-omni-7b", machine(40, 40, 40), *apart)
    assert verdict.missing == ("the device `7` of stage `token2wav`",)
    assert needed(verdict) == {None: 1.2, 1: 22.2, 2: 6.1}


def test_a_pipeline_counts_the_visible_devices_and_a_process_of_vllm_all(tmp_path: Path) -> None:
    where = machine(10, 20, 80)
    visible = [{"name": "GPU", "total_bytes": 80 * GIB, "uuid": "GPU-2a"}]
    where = replace(where, torch=TorchProbe({"cuda_available": True, "devices": visible}))
    assert needed(judge("qwen-image", where)) == {None: 0.6, 2: 54.3}
    assert needed(judge("qwen-image", where, "image.devices='0'")) == {None: 0.6, 2: 54.3}
    assert judge("qwen-image", where, "image.devices='2'").missing == ("the device `2` of stage `image`",)
    model = language_model(tmp_path / "model", {"w": ("BF16", GIB)})
    named = text_config(model, kv_cache_memory_bytes=GIB, devices="1")
    assert needed(judge(named, where)) == {None: 0.6, 1: 3.6}


def test_a_device_that_shares_the_hosts_memory() -> None:
    assert judge("ltx-2", machine(0, host=host(128))).missing == ()
    (missing,) = judge("ltx-2", machine(0, host=host(32))).missing
    assert missing == "at least 64.2 GiB of memory (this machine has 32.0 GiB)"


def test_a_local_checkpoint_is_measured_by_its_files(tmp_path: Path) -> None:
    """In the profile's type, without variants and shards that the index does not name; packed weights as they are."""
    folder = language_model(tmp_path / "model", {"w": ("F32", 8 * GIB), "packed": ("U8", 2 * GIB)})
    write_weights(folder, {"w": ("BF16", 99 * GIB)}, "model.fp16.safetensors")
    config = text_config(folder, kv_cache_memory_bytes=GIB)
    assert needed(judge(config, machine())) == {None: 19.6}
    assert judge(config, machine(host=host(16))).missing == ("at least 19.6 GiB of memory (this machine has 16.0 GiB)",)
    assert needed(judge(text_config(folder, "float32", kv_cache_memory_bytes=GIB), machine())) == {None: 35.6}
    (folder / "model.safetensors").unlink()
    write_weights(folder, {"w": ("BF16", 3 * GIB)}, "model-00001-of-00001.safetensors")
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert needed(judge(config, machine())) == {None: 7.6}


def test_without_a_size_a_stage_needs_a_small_cache_and_with_a_share_all_of_it(tmp_path: Path) -> None:
    folder = language_model(tmp_path / "model", {"w": ("BF16", GIB)})
    assert needed(judge(text_config(folder), machine(host=host(100)))) == {None: 2.7}
    assert judge(text_config(folder), machine(host=host(100, free_gib=2))).missing
    assert needed(judge(text_config(folder, gpu_memory_utilization=0.5), machine(80))) == {None: 0.6, 0: 40.0}


def test_the_stages_of_a_chain_load_their_own_weights(tmp_path: Path) -> None:
    sizes = {"thinker.model.w": 8, "talker.model.w": 2, "token2wav.code2wav_dit_model.w": 1}
    folder = tmp_path / "model"
    write_weights(folder, {name: ("F32", size * GIB) for name, size in sizes.items()})
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen2_5OmniModel"]}))
    apart = [f"{stage}.devices='{number}'" for number, stage in enumerate(("thinker", "talker", "token2wav"))]
    config = load_profile("qwen2.5-omni-7b", apart, model=str(folder))
    assert needed(judge(config, machine(80, 80, 80))) == {None: 1.8, 0: 21.6, 1: 7.6, 2: 9.6}


def test_a_local_pipeline_is_measured_by_component(tmp_path: Path) -> None:
    for component in ("transformer", "text_encoder"):
        write_weights(tmp_path / component, {"w": ("F32", 10 * GIB)})
    (tmp_path / "scheduler").mkdir()
    index = {name: ["diffusers", "Any"] for name in ("transformer", "text_encoder", "scheduler")}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "QwenImagePipeline", **index}))
    stage = DiffusionStageConfig.create("image", torch_dtype={"text_encoder": "float32"})
    assert needed(judge(make_config("image", str(tmp_path), stage, dtype="bfloat16"), machine())) == {None: 60.6}


def test_a_broken_checkpoint_is_missing_what_it_lacks(tmp_path: Path) -> None:
    folder = language_model(tmp_path / "model", {"w": ("BF16", 8)})
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    (missing,) = judge(text_config(folder), machine()).missing
    assert "is a Git LFS pointer" in missing
    (missing,) = judge(text_config(tmp_path / "nowhere"), machine()).missing
    assert missing.startswith("no such model folder")


def test_the_size_of_a_repository_is_unknown_until_its_configuration_is_here(tmp_path: Path) -> None:
    config = text_config("someone/else", kv_cache_memory_bytes=GIB)
    verdict = judge(config, machine(hub=tmp_path))
    assert (verdict.missing, verdict.memory, report.status(verdict)) == ((), None, "unknown")
    assert "size unknown until it is downloaded" in report.text(facts(), [], [verdict])
    snapshot = tmp_path / "models--someone--else" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "dtype": "float32"}))
    total = {"metadata": {"total_size": 40 * GIB}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(total))
    verdict = judge(config, machine(hub=tmp_path))
    assert needed(verdict) == {None: 21.6}
    assert report.status(verdict) == "download"
    write_weights(snapshot, {"w": ("F32", 12 * GIB)})
    (snapshot / "model.safetensors.index.json").unlink()
    verdict = judge(config, machine(hub=tmp_path))
    assert (needed(verdict), report.status(verdict)) == ({None: 25.6}, "ready")


def test_the_document_has_the_sizes() -> None:
    document: Any = report.document(facts(), [], [judge("ltx-2", machine(24))])
    (profile,) = document["profiles"]
    assert profile["status"] == "missing"
    assert [use["gpu"] for use in profile["memory"]] == [None, 0]
    assert profile["memory"][1]["needed_bytes"] > profile["memory"][1]["total_bytes"] == 24 * GIB
