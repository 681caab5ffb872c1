"""Messages of the installed vLLM, torch and transformers name our keys when they reach a user."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.omni_process import run_omni

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

pytest.importorskip("vllm")
ensure_torchvision_importable()

from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig  # noqa: E402
from omni_cli.engine.devices import has_cuda_device  # noqa: E402
from omni_cli.stage.failures import TRANSLATIONS, translate  # noqa: E402

GIB = 1 << 30
STAGE = ARStageConfig.create("model")
FOREIGN = ("--limit-mm", "--gpu-memory", "--kv-cache", "--max-model-len", "VLLM_", "docs.vllm.ai")


def said(function, *arguments, **keywords) -> str:
    """Return the message of the real check that rejects."""
    with pytest.raises(Exception) as caught:
        function(*arguments, **keywords)
    return " ".join(str(caught.value).split())


def cpu_cache() -> str:
    from vllm.v1.worker import cpu_worker

    worker = SimpleNamespace(
        _should_warm_up_model=lambda: False, cache_config=SimpleNamespace(kv_cache_memory_bytes=1 << 50)
    )
    return said(cpu_worker.CPUWorker.determine_available_memory, worker)


def gpu_start() -> str:
    from vllm.v1.worker.utils import request_memory

    snapshot = SimpleNamespace(total_memory=80 * GIB, free_memory=40 * GIB, device_="cuda:0")
    return said(request_memory, snapshot, SimpleNamespace(gpu_memory_utilization=0.92))


def cache_check(available: int, estimate: int) -> str:
    from vllm.v1.core.kv_cache_utils import _check_enough_kv_cache_memory

    return said(_check_enough_kv_cache_memory, available, lambda: 4 * GIB, 8192, lambda memory: estimate)


def batched_tokens() -> str:
    from vllm.config import SchedulerConfig

    scheduler = SimpleNamespace(max_num_batched_tokens=512, enable_chunked_prefill=False)
    return said(SchedulerConfig.verify_max_model_len, scheduler, 2048)


def fewer_tokens_than_requests() -> str:
    from vllm.config import SchedulerConfig

    scheduler = SimpleNamespace(max_num_batched_tokens=4, max_num_seqs=8, enable_chunked_prefill=True)
    return said(SchedulerConfig.verify_max_model_len, scheduler, 2048)


def long_prompt(length: int) -> str:
    from vllm.v1.engine.input_processor import InputProcessor

    processor = SimpleNamespace(
        skip_prompt_length_check=False,
        supports_mm_inputs=True,
        model_config=SimpleNamespace(max_model_len=512, runner_type="generate"),
    )
    return said(InputProcessor._validate_prompt_len, processor, length, "decoder")


def long_context() -> str:
    from vllm.renderers.params import TokenizeParams

    return said(TokenizeParams(max_total_tokens=512, max_output_tokens=0)._token_len_check, None, list(range(513)))


def large_image() -> str:
    from vllm.v1.engine.input_processor import InputProcessor

    position = SimpleNamespace(get_num_embeds=lambda: 900)
    processor = SimpleNamespace(
        _validate_prompt_len=lambda *_: None, model_config=None, tokenizer=None, mm_encoder_cache_size=512
    )
    prompt = {"type": "multimodal", "prompt_token_ids": [1], "mm_placeholders": {"image": [position]}}
    return said(InputProcessor._validate_model_input, processor, prompt, "decoder")


def items(supported: dict[str, int | None], allowed: int) -> str:
    from vllm.multimodal.processing import BaseProcessingInfo

    info = SimpleNamespace(supported_mm_limits=supported, allowed_mm_limits=dict.fromkeys(supported, allowed))
    return said(BaseProcessingInfo.validate_num_items, info, "image", 3)


def too_long() -> str:
    from vllm.config.model import _get_and_verify_max_len

    model = SimpleNamespace(derived_max_model_len_and_key=(8192, "max_position_embeddings"))
    config = SimpleNamespace(model_type="llama", rope_parameters=None)
    return said(_get_and_verify_max_len, config, model, None, 100_000, False, None)


def remote_code() -> str:
    from transformers.dynamic_module_utils import resolve_trust_remote_code

    return said(resolve_trust_remote_code, False, "someone/model", False, True)


@pytest.mark.parametrize(
    ("make", "expected", "setting"),
    [
        (cpu_cache, "the KV cache would take 1048576.0 GiB, and", "--set model.kv_cache_memory_bytes="),
        (
            gpu_start,
            "would reserve 73.6 GiB of the device, and 40.0 GiB of 80.0",
            "`--set model.gpu_memory_utilization=0.4`",
        ),
        (
            lambda: cache_check(0, 0),
            "no memory is left for the KV cache",
            "--set model.kv_cache_memory_bytes=1073741824",
        ),
        (
            lambda: cache_check(GIB, 2048),
            "needs 4.0 GiB of KV cache, which has 1.0 GiB",
            "--set model.max_model_len=2048",
        ),
        (lambda: cache_check(GIB, 0), "one request of 8192 tokens", "`--set model.kv_cache_memory_bytes=4509715661`"),
        (batched_tokens, "(512) is smaller than", "--set model.max_num_batched_tokens=2048"),
        (too_long, "(100000) is more than the model's 8192 positions", "`--set model.max_model_len=8192`"),
        (remote_code, "someone/model", "--trust-remote-code"),
        (fewer_tokens_than_requests, "(4) is smaller than `max_num_seqs` (8)", "--set model.max_num_batched_tokens=8"),
        (lambda: long_prompt(600), "longer than stage `model` takes: 512 tokens", "`--set model.max_model_len=N`"),
        (lambda: long_prompt(512), "longer than stage `model` takes: 512 tokens", "shorten it, or `--set"),
        (long_context, "longer than stage `model` takes: 512 tokens", "`--set model.max_model_len=N`"),
        (
            large_image,
            "this image takes 900 tokens; stage `model` has room for 512",
            "--set model.max_num_batched_tokens=900",
        ),
        (
            lambda: items({"image": 4}, 2),
            "stage `model` takes at most 2 image per request",
            "`--set model.limit_mm_per_prompt='{image: N}'`",
        ),
    ],
)
def test_real_messages_name_our_keys(make, expected: str, setting: str) -> None:
    message, hint = translate(make(), STAGE)
    assert expected in message
    assert setting in (hint or "")
    assert not any(word in message for word in FOREIGN)


def test_a_limit_of_the_model_has_no_option() -> None:
    assert translate(items({"image": 1}, 1), STAGE) == ("stage `model` takes at most 1 image per request", None)
    assert translate(items({}, 1), STAGE) == ("stage `model` takes no image", None)


def test_a_model_that_needs_files_of_mistral() -> None:
    from vllm.model_executor.models import voxtral

    needs = "This model requires `--tokenizer-mode mistral`"
    assert needs in inspect.getsource(voxtral)
    message, hint = translate(needs, STAGE)
    assert "from Mistral's own files only" in message and hint == "choose another model"


def test_messages_that_need_a_device() -> None:
    from vllm.v1.worker import gpu_model_runner

    phrase = "CUDA out of memory occurred when warming up sampler with"
    assert phrase in inspect.getsource(gpu_model_runner)
    message, hint = translate(f"{phrase} 256 dummy requests. Please try lowering `max_num_seqs`", STAGE)
    assert message == "out of memory on the device while warming up 256 requests"
    assert hint == "`--set model.max_num_seqs=128` or `--set model.gpu_memory_utilization=0.8`"
    # torch's, of its C++ allocator.
    torch = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
    message, hint = translate(torch, DiffusionStageConfig.create("image"))
    assert message == "out of memory on the device: 2.00 GiB more could not be allocated"
    assert hint == "`--set image.devices='1'` or `--set image.max_num_seqs=1` or `--set dtype=bfloat16`"
    # In a process with a share of the device.
    torch += " of which 30.72 GiB is free. 8.39 GiB allowed; Of the allocated memory 6.84 GiB is allocated by PyTorch"
    message, hint = translate(torch, STAGE)
    assert message == "out of memory in the stage's share of the device, 8.39 GiB: 2.00 GiB more could not be allocated"
    assert hint == "`--set model.gpu_memory_utilization=0.16` or `--set model.max_num_seqs=1`"


def test_an_option_in_any_other_message_is_ours() -> None:
    text = "lower --max-num-seqs, --swap-space or VLLM_CPU_KVCACHE_SPACE, see HF_HOME"
    translated = "lower --set model.max_num_seqs, --swap-space or --set model.kv_cache_memory_bytes, see HF_HOME"
    assert translate(text, STAGE) == (translated, None)
    assert all(re.search(translation.pattern, text) is None for translation in TRANSLATIONS)


@pytest.mark.skipif(has_cuda_device(), reason="this is the message on a CPU")
def test_a_share_of_all_the_memory_is_refused_with_what_to_make_smaller(tmp_path: Path) -> None:
    settings = ["--set", "thinker.kv_cache_memory_bytes=null", "--set", "thinker.gpu_memory_utilization=1.0"]
    ended = run_omni(tmp_path, "generate", "-p", "tiny-omni", "--modalities", "text", *settings, "hello")
    assert ended.code == 6
    assert "the stages of `tiny-omni` need at least" in ended.err
    assert "hint: use smaller `kv_cache_memory_bytes` or `max_model_len`" in ended.err
    assert not any(word in ended.err for word in FOREIGN)


def test_a_cache_of_given_size_needs_no_free_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's check on a GPU passes beside other stages; a diffusion's share stays what must be free."""
    from vllm.v1.worker.utils import request_memory

    from omni_cli.backends.vllm import device_settings

    monkeypatch.setattr(device_settings, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    given: dict[str, object] = {"kv_cache_memory_bytes": GIB, "gpu_memory_utilization": 0.55}
    share = device_settings.with_given_cache(given)["gpu_memory_utilization"]
    snapshot = SimpleNamespace(total_memory=80 * GIB, free_memory=2 * GIB, device_="cuda:0")
    assert request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=share)) < GIB
    assert device_settings.with_given_cache({**given, "runner": "pooling"})["gpu_memory_utilization"] == 0.55
