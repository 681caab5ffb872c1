"""The CPU twins of `gpu.py`: the same mixins over vLLM's CPU runner and worker."""

from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from omni_cli.vllm_integration.runner_mixins import ARRunnerMixin, DiffusionRunnerMixin, OmniRunnerMixin
from omni_cli.vllm_integration.workers import OmniWorkerMixin


class OmniCPUModelRunner(OmniRunnerMixin, CPUModelRunner):
    """vLLM's V1 CPU runner that decodes request payloads."""


class CPUARModelRunner(ARRunnerMixin, OmniCPUModelRunner):
    """Tokens as vLLM makes them, and hidden states per request in `pooler_output`."""


class CPUDiffusionModelRunner(DiffusionRunnerMixin, OmniCPUModelRunner):
    """One tensor per request in `pooler_output`; no logits, no sampling, no KV cache."""


class CPUARWorker(OmniWorkerMixin, CPUWorker):
    runner_cls = CPUARModelRunner
    runner_home = cpu_worker


class CPUDiffusionWorker(OmniWorkerMixin, CPUWorker):
    runner_cls = CPUDiffusionModelRunner
    runner_home = cpu_worker
