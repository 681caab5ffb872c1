"""Runners and workers on CUDA; vLLM uses a worker that its `worker_cls` names."""

import ctypes

import torch
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
from vllm.v1.worker import gpu_model_runner, gpu_worker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import MemorySnapshot, Worker

from omni_cli.backends.vllm.code_runner import CodeRunnerMixin
from omni_cli.backends.vllm.device_settings import SMALLEST_SHARE
from omni_cli.backends.vllm.diffusion_runner import DiffusionRunnerMixin
from omni_cli.backends.vllm.runner_mixins import ARRunnerMixin, OmniRunnerMixin
from omni_cli.backends.vllm.workers import OmniWorkerMixin
from omni_cli.core.compat import replace_attributes


class OmniGPUModelRunner(OmniRunnerMixin, GPUModelRunner):
    """vLLM's V1 runner that decodes request payloads."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        # Triton looks kernels up by their assembler, too. Where Inductor compiles, it sets another one, but not where
        # it loads what it has compiled: a second start would compile the sampler's kernels again.
        _set_triton_ptxas_path()
        super().__init__(*args, **kwargs)


class GPUARModelRunner(ARRunnerMixin, OmniGPUModelRunner):
    """vLLM's tokens, with hidden states per request in `pooler_output`."""


class GPUCodeModelRunner(CodeRunnerMixin, GPUARModelRunner):
    """vLLM's tokens, with codes per request in `pooler_output`."""


class GPUDiffusionModelRunner(DiffusionRunnerMixin, OmniGPUModelRunner):
    """One tensor per request in `pooler_output`; no logits, no sampling, no KV cache."""


# CUDA keeps a stack for each thread that a device can run at once: with its 1,024 bytes an H200's context takes 621
# MiB, with these 423. A kernel that needs more gets it at its launch.
STACK_BYTES = 256
_CU_LIMIT_STACK_SIZE = 0


def snapshot_with_small_stacks(**kwargs: object) -> MemorySnapshot:
    """Make the stacks of the current device small, then return vLLM's snapshot of its memory."""
    torch.cuda.synchronize()  # the first call of CUDA in the process makes the context
    if torch.version.hip is None:
        ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(_CU_LIMIT_STACK_SIZE, ctypes.c_size_t(STACK_BYTES))
    return MemorySnapshot(**kwargs)


class OmniGPUWorker(OmniWorkerMixin, Worker):
    runner_home = gpu_model_runner

    def init_device(self, *args: object, **kwargs: object) -> None:
        # What is freed after vLLM's snapshot would be added to a KV cache whose size is a share of the device, and vLLM
        # refuses to load a small model after which more is free than before.
        with replace_attributes(gpu_worker, MemorySnapshot=snapshot_with_small_stacks):
            super().init_device(*args, **kwargs)


class GPUARWorker(OmniGPUWorker):
    runner_cls = GPUARModelRunner


class GPUCodeWorker(OmniGPUWorker):
    runner_cls = GPUCodeModelRunner


class GPUDiffusionWorker(OmniGPUWorker):
    """Keeps to the stage's share of the device, graphs and buffers included: vLLM only checks that it is free."""

    runner_cls = GPUDiffusionModelRunner

    def init_device(self, *args: object, **kwargs: object) -> None:
        super().init_device(*args, **kwargs)
        share = self.cache_config.gpu_memory_utilization
        if share > SMALLEST_SHARE:
            torch.cuda.set_per_process_memory_fraction(share, self.device)
