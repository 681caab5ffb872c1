"""The CPU twins of `gpu.py`: the same mixins over vLLM's CPU runner and worker."""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import layer
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from omni_cli.backends.vllm.code_runner import CodeRunnerMixin
from omni_cli.backends.vllm.diffusion_runner import DiffusionRunnerMixin
from omni_cli.backends.vllm.quick_start import PagesOnUse
from omni_cli.backends.vllm.runner_mixins import ARRunnerMixin, OmniRunnerMixin
from omni_cli.backends.vllm.workers import OmniWorkerMixin
from omni_cli.core.compat import replace_attributes


class _Discarded(torch.Generator):
    """A generator for tokens that vLLM discards: it rewinds the generator, which a CPU generator does not support."""

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> None:
        pass


class OmniCPUModelRunner(OmniRunnerMixin, CPUModelRunner):
    """vLLM's V1 CPU runner that decodes request payloads."""

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **{**kwargs, "kv_cache_allocation_context": PagesOnUse()})


class CPUARModelRunner(ARRunnerMixin, OmniCPUModelRunner):
    """vLLM's tokens, with hidden states per request in `pooler_output`.

    vLLM samples after each chunk of a prompt and keeps only the last token.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        # With vLLM's kernel for CPUs a seed would give other tokens than with transformers' `generate`.
        sampler = self.sampler.topk_topp_sampler
        sampler.forward = sampler.forward_native

    def sample_tokens(self, grammar_output: object) -> object:
        generators = self.input_batch.generators
        if not generators:
            return super().sample_tokens(grammar_output)
        unfinished = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        seeded = {index: generators[index] for index in unfinished if index in generators}
        generators.update(dict.fromkeys(seeded, _Discarded()))
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(seeded)


class CPUCodeModelRunner(CodeRunnerMixin, CPUARModelRunner):
    """vLLM's tokens, with codes per request in `pooler_output`."""


class CPUDiffusionModelRunner(DiffusionRunnerMixin, OmniCPUModelRunner):
    """One tensor per request in `pooler_output`; no logits, no sampling, no KV cache."""


class OmniCPUWorker(OmniWorkerMixin, CPUWorker):
    runner_home = cpu_worker

    def load_model(self, *args: object, **kwargs: object) -> None:
        # vLLM 0.32 takes Triton for experts beside any adapter, and CPUs have none; `EngineAdapters` adapts no experts.
        config = layer.FusedMoEConfig
        with replace_attributes(layer, FusedMoEConfig=lambda **keys: config(**{**keys, "is_lora_enabled": False})):
            super().load_model(*args, **kwargs)


class CPUARWorker(OmniCPUWorker):
    runner_cls = CPUARModelRunner


class CPUCodeWorker(OmniCPUWorker):
    runner_cls = CPUCodeModelRunner


class CPUDiffusionWorker(OmniCPUWorker):
    runner_cls = CPUDiffusionModelRunner
