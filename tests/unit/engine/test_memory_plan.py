"""The memory of a chain is planned before anything loads: its KV caches fit beside its weights, on planted machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.profile_text import make_config

from omni_cli.checkpoints.stage_weights import stage_decoders
from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.core.errors import OmniError, StageError
from omni_cli.core.machine import Gpu, Gpus, HostMemory
from omni_cli.engine import devices, memory_plan
from omni_cli.engine.devices import Devices
from omni_cli.engine.memory_plan import MemoryPlan, cache_bytes_per_token, plan_memory, plan_start

GIB = 1 << 30
DECODER = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
}
# Of keys and values, per token, in bfloat16.
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2


def chain(**keys: Any) -> EngineConfig:
    stages = [
        ARStageConfig.create("thinker", **keys),
        ARStageConfig.create("talker", input="thinker", **keys),
    ]
    return make_config("chain", "model", *stages, dtype="bfloat16")


def plan(config: EngineConfig, free_gib: float, weights_gib: float = 2, gpu: bool = True) -> MemoryPlan:
    weights = {stage.name: {"": int(weights_gib * GIB)} for stage in config.stages}
    gpus = (Gpu(0, "GPU", 24 * GIB, int(free_gib * GIB)),) if gpu else ()
    host = HostMemory(24 * GIB, int(free_gib * GIB), None)
    decoders = {stage.name: DECODER for stage in config.stages}
    return plan_memory(config, weights, decoders, host, Devices(gpus, gpus))


def caches(planned: MemoryPlan) -> list[int]:
    return [stage.kv_cache_memory_bytes for stage in planned.config.stages]


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "host"])
@pytest.mark.parametrize("keys", [{}, {"max_num_seqs": 8}, {"max_num_seqs": 512, "max_model_len": 4096}], ids=str)
@pytest.mark.parametrize("free_gib", [10, 16, 24])
def test_all_stages_fit_together(free_gib: float, keys: dict, gpu: bool) -> None:
    planned = plan(chain(**keys), free_gib, gpu=gpu)
    assert planned.missing == ()
    device = [row for row in planned.stages if row.device == ("GPU 0" if gpu else "host")]
    assert sum(row.weights_bytes + (row.kv_cache_bytes or 0) + row.other_bytes for row in device) <= free_gib * GIB
    length = keys.get("max_model_len", 8192)
    assert min(caches(planned)) >= TOKEN_BYTES * length, "one request of full length fits"
    assert max(caches(planned)) <= TOKEN_BYTES * (length * keys.get("max_num_seqs", 256) + 1024), (
        "and no more than can be"
    )


def test_a_cache_is_not_larger_than_all_requests_need() -> None:
    assert caches(plan(chain(max_num_seqs=2), 24)) == [TOKEN_BYTES * (8192 * 2 + 1024)] * 2


def test_the_rest_is_shared_by_need() -> None:
    """The stage with four times the requests gets more, and both get at least one request of full length."""
    config = chain(max_num_seqs=8)
    config = config.with_stages(
        [config.stage("thinker").model_copy(update={"max_num_seqs": 64}), config.stage("talker")]
    )
    thinker, talker = caches(plan(config, 10))
    assert thinker > 3 * talker > 3 * TOKEN_BYTES * 8192


def test_a_length_that_the_profile_does_not_state_is_reduced() -> None:
    tight = plan(chain(), 7.3)
    lengths = [stage.max_model_len for stage in tight.config.stages]
    assert tight.missing == ()
    assert all(length is not None and length % 256 == 0 and 256 <= length < 8192 for length in lengths)
    assert all(cache >= TOKEN_BYTES * (length or 0) for cache, length in zip(caches(tight), lengths, strict=True))


def test_sizes_that_the_profile_states_stay() -> None:
    config = chain(kv_cache_memory_bytes=GIB)
    planned = plan(config, 24)
    assert planned.config == config
    assert not any(row.is_planned for row in planned.stages)


def test_a_model_of_unknown_layers_gets_a_cache() -> None:
    config = make_config("one", "model", ARStageConfig.create("model"), dtype="bfloat16")
    host = HostMemory(24 * GIB, 24 * GIB, None)
    planned = plan_memory(config, {"model": {"": GIB}}, {}, host, Devices((), ()))
    assert 10 * GIB < caches(planned)[0] < 18 * GIB


@pytest.mark.parametrize("key", ["num_attention_heads", "num_key_value_heads"])
def test_layers_that_differ_are_unknown(key: str) -> None:
    assert cache_bytes_per_token(DECODER, "bfloat16") == TOKEN_BYTES
    assert cache_bytes_per_token({**DECODER, key: [3] * 30}, "bfloat16") is None


def test_a_token_has_keys_and_values_in_each_branch() -> None:
    assert cache_bytes_per_token({**DECODER, "num_branches": 2}, "bfloat16") == 3 * TOKEN_BYTES


def test_each_request_of_an_encoder_decoder_keeps_what_its_encoder_made() -> None:
    """Sizes of a Whisper, whose encoder has other ones."""
    sizes = {"decoder_layers": 12, "decoder_attention_heads": 12, "d_model": 768, "max_source_positions": 1500}
    decoder = {**sizes, "encoder_layers": 6, "encoder_attention_heads": 8, "num_hidden_layers": 6}
    stage = ARStageConfig.create("transcriber", max_model_len=448, max_num_seqs=4)
    config = make_config("one", "model", stage, dtype="bfloat16")
    host = HostMemory(24 * GIB, 24 * GIB, None)
    planned = plan_memory(config, {"transcriber": {"": GIB}}, {"transcriber": decoder}, host, Devices((), ()))
    assert caches(planned) == [2 * 12 * 768 * 2 * (4 * (448 + 1500) + 1024)]


def test_a_profile_of_a_whisper_that_states_no_length_has_that_of_its_decoder() -> None:
    """Not the one of unknown decoders, which vLLM would refuse once it is shortened to fit."""
    sizes = {"decoder_layers": 32, "decoder_attention_heads": 20, "d_model": 1280, "max_target_positions": 448}
    for decoder, heard in (({**sizes, "max_source_positions": 1500}, 1500), (sizes, 0)):
        stage = ARStageConfig.create("transcriber", max_num_seqs=1)
        config = make_config("one", "model", stage, dtype="float32")
        host = HostMemory(24 * GIB, 6 * GIB, None)
        planned = plan_memory(config, {"transcriber": {"": GIB}}, {"transcriber": decoder}, host, Devices((), ()))
        assert caches(planned) == [2 * 32 * 1280 * 4 * (448 + heard + 1024)]


def test_the_decoder_of_a_transcriber_may_be_part_of_a_thinker(tmp_path: Path) -> None:
    config = {"architectures": ["Qwen3ASRForConditionalGeneration"], "thinker_config": {"text_config": DECODER}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    profile = make_config("one", "model", ARStageConfig.create("transcriber"))
    assert stage_decoders(profile, tmp_path)["transcriber"]["hidden_size"] == DECODER["hidden_size"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {
        "architectures": ["Qwen2_5OmniModel"],
        "thinker_config": {"text_config": DECODER},
        "talker_config": DECODER,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "free_gib", "needed"),
    [({"kv_cache_memory_bytes": 12 * GIB}, 20, r"25\.2"), ({"max_model_len": 65536}, 3, r"4\.0")],
    ids=str,
)
def test_sizes_that_do_not_fit_together_are_refused(
    keys: dict, free_gib: int, needed: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage alone would pass vLLM's own check."""
    monkeypatch.setattr(memory_plan, "read_memory", lambda: HostMemory(24 * GIB, free_gib * GIB, None))
    monkeypatch.setattr(devices, "has_cuda_device", lambda: False)
    with pytest.raises(StageError, match=rf"the stages of `chain` need at least {needed}.* GiB of memory") as caught:
        plan_start(chain(**keys), folder)
    assert caught.value.hint is not None and "smaller `kv_cache_memory_bytes`" in caught.value.hint


def test_a_driver_that_reports_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_cuda_device", lambda: True)
    monkeypatch.setattr(devices, "read_gpus", lambda: Gpus())
    assert plan_start(chain(kv_cache_memory_bytes=GIB), folder) is None
    with pytest.raises(OmniError, match="cannot determine the memory of the CUDA device: nvidia-smi is not installed"):
        plan_start(chain(), folder)
