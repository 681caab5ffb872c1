"""Workers that run our model runner.

`Worker.init_device` (CUDA) and `CPUWorker.init_device` build the runner inside a long body, and vLLM has no setting for
its class. So the name that this body looks up refers to our runner while it runs.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from omni_cli.compat.replaced import replaced
from omni_cli.execution.ranges import mark
from omni_cli.execution.stacks import stacks_in, write_stacks_on_signal
from omni_cli.vllm_integration.ranks import forget_cpu_channels, forget_message_queues
from omni_cli.vllm_integration.registry import resolve_inner

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as VllmWorker

    from omni_cli.config.schema import OutputCopy
    from omni_cli.stage.payloads import PayloadLimits
else:
    VllmWorker = object  # `cpu.py` and `gpu.py` combine the mixin with vLLM's workers


class OmniWorkerMixin(VllmWorker):
    """Builds `runner_cls` in place of its base, the V1 runner, which `init_device` looks up in `runner_home`."""

    runner_cls: ClassVar[type]
    runner_home: ClassVar[ModuleType]
    distributed_init_method: str

    def init_device(self, *args: object, **kwargs: object) -> None:
        scratch = os.environ.get("VLLM_RPC_BASE_PATH")  # set by the stage's process
        if scratch is not None and stacks_in(scratch).exists():  # not in a rank on another machine
            write_stacks_on_signal(stacks_in(scratch))
        if self.distributed_init_method == "env://":
            # With an external launcher. vLLM names the shared memory of CPU ranks by the part after the colon: without
            # a name per launch, two launches would share it, and a killed one would block all later ones.
            self.distributed_init_method = f"env://#{os.environ['MASTER_PORT']}"
        base = next(cls.__name__ for cls in self.runner_cls.__mro__ if cls.__module__.startswith("vllm."))
        with replaced(self.runner_home, **{base: self.runner_cls}):
            super().init_device(*args, **kwargs)
        forget_cpu_channels()
        built = type(self.model_runner)
        if built is not self.runner_cls:
            raise RuntimeError(
                f"vLLM built {built.__module__}.{built.__qualname__} and not our {self.runner_cls.__name__}: "
                "omni needs the V1 model runner (VLLM_USE_V2_MODEL_RUNNER=0 before the configuration is built)"
            )

    def load_model(self, *args: object, **kwargs: object) -> None:
        with mark("load weights"):
            resolve_inner(self.vllm_config.model_config.architectures)
            super().load_model(*args, **kwargs)

    def determine_available_memory(self) -> int:
        with mark("memory profiling"):
            available = int(super().determine_available_memory())
        num_branches: int = self.model_runner.num_branches
        return available // (1 + num_branches)

    def initialize_from_config(self, *args: object, **kwargs: object) -> None:
        with mark("KV cache"):
            super().initialize_from_config(*args, **kwargs)
            # As vLLM's: forgotten while asleep.
            with self._maybe_get_memory_pool_context(tag="kv_cache"):
                self.model_runner.allocate_branches(self.cache_config.num_gpu_blocks * self.cache_config.block_size)

    def compile_or_warm_up_model(self) -> object:
        with mark("warm-up"):
            return super().compile_or_warm_up_model()

    def use_output_copy(self, mode: OutputCopy) -> OutputCopy:
        """Set the copy mode from now on and return the effective one. `collective_rpc` calls this on every rank."""
        used: OutputCopy = self.model_runner.use_output_copy(mode)
        return used

    def forget_message_queues(self) -> None:
        """Unlink this rank's message queues. `collective_rpc` calls this on every rank, once the engine is loaded."""
        forget_message_queues()

    def unused_modules(self, adapter: int) -> list[str]:
        """Return the modules of a loaded LoRA adapter that this rank's part of the model lacks."""
        manager = self.model_runner.lora_manager._adapter_manager
        return [name for name in manager.get_adapter(adapter).loras if name not in manager.modules]

    def use_payload_limits(self, limits: PayloadLimits) -> None:
        """Set the limits of requests' payloads from now on. `collective_rpc` calls this on every rank."""
        self.model_runner.payload_limits = limits

    def execution_counters(self) -> dict[str, float] | None:
        """Return the counters since loading; None on ranks that return no outputs."""
        return self.model_runner.execution_counters() if self.model_runner.returns_outputs else None

    def cudagraph_mode(self) -> str:
        """Return the mode in which vLLM runs this rank's steps, by the profile's name for it."""
        return str(self.model_runner.cudagraph_dispatcher.cudagraph_mode.name).lower()
