"""Workers that run our model runner, and their ranks in separate processes.

`Worker.init_device` (CUDA) and `CPUWorker.init_device` build the runner inside a long body, and vLLM has no setting for
its class. So the name that this body looks up refers to our runner while it runs.

Shared memory of ranks is unlinked as soon as all have mapped it: the system frees it when the last of them ends. vLLM
unlinks it only at an orderly end: a killed stage would leave it behind, and so would ranks on Ray, which are always
killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

from vllm.distributed import get_pp_group, get_tp_group
from vllm.distributed.device_communicators import shm_broadcast
from vllm.platforms import current_platform

from omni_cli.backends.execution.ranges import mark
from omni_cli.backends.execution.stacks import stacks_in, write_stacks_on_signal
from omni_cli.backends.vllm.registry import resolve_inner
from omni_cli.core.compat import replace_attributes
from omni_cli.core.errors import StageError

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.worker.gpu_worker import Worker as VllmWorker

    from omni_cli.config.schema import OutputCopy
    from omni_cli.stage.payloads import PayloadLimits
else:
    VllmWorker = object  # `cpu.py` and `gpu.py` combine the mixin with vLLM's workers

_created_rings: WeakSet[shm_broadcast.ShmRingBuffer] = WeakSet()


def prepare_ranks(num_ranks: int, stage: str) -> None:
    """Prepare this process before the engine is created. Raises `StageError` if there are fewer cores than ranks.

    On a CPU with fewer NUMA nodes than ranks, vLLM must be given each rank's cores; they are divided evenly unless
    `VLLM_CPU_OMP_THREADS_BIND` is set.
    """
    # A spawned process first reruns the main module, which must be the one with our imports and workarounds.
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("omni_cli.engine.process.preload_vllm")
    if not current_platform.is_cpu() or "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < num_ranks:
        raise StageError(f"{num_ranks} ranks need as many cores, and there are {len(cores)}", stage=stage)
    share = len(cores) // num_ranks
    groups = [cores[rank * share : (rank + 1) * share] for rank in range(num_ranks)]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, group)) for group in groups)


def forget_shared_memory(engine: LLMEngine) -> None:
    """Unlink the shared memory of a running engine and its ranks, so that nothing remains if they are killed."""
    engine.collective_rpc("forget_message_queues")
    forget_message_queues()


class RecordedRingBuffer(shm_broadcast.ShmRingBuffer):
    """vLLM's ring buffer, recorded by the process that creates it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if self.is_creator:
            _created_rings.add(self)


# vLLM's message queues look the class up by this name. Only a rank's main loop holds its queue, so no hook reaches it.
shm_broadcast.ShmRingBuffer = RecordedRingBuffer


def forget_message_queues() -> None:
    """Unlink the queues between engine and ranks that this process, or its parent before a fork, created.

    Call it once the engine is loaded.
    """
    for buffer in _created_rings:
        # A forked rank also has its parent's queues; the first process to get here unlinks them.
        with contextlib.suppress(FileNotFoundError):
            buffer.shared_memory.unlink()
        # Or it would be unlinked again.
        buffer.is_creator = False


def forget_cpu_channels() -> None:
    """Unlink the channels over which ranks on a CPU exchange tensors, once they are set up."""
    for group in (get_tp_group(), get_pp_group()):
        channel = getattr(group.device_communicator, "dist_module", None)
        name: str | None = getattr(channel, "group_name", None)
        if name is not None:
            for rank in range(group.world_size):
                Path("/dev/shm", f"{name.lstrip('/')}_{rank}").unlink(missing_ok=True)


class OmniWorkerMixin(VllmWorker):
    """Builds `runner_cls` in place of its base, the V1 runner, which `init_device` looks up in `runner_home`."""

    runner_cls: ClassVar[type]
    runner_home: ClassVar[ModuleType]

    def init_device(self, *args: object, **kwargs: object) -> None:
        scratch = os.environ.get("VLLM_RPC_BASE_PATH")  # set by the stage's process
        if scratch is not None and stacks_in(scratch).exists():  # not in a rank on another machine
            write_stacks_on_signal(stacks_in(scratch))
        base = next(cls.__name__ for cls in self.runner_cls.__mro__ if cls.__module__.startswith("vllm."))
        with replace_attributes(self.runner_home, **{base: self.runner_cls}):
            super().init_device(*args, **kwargs)
        forget_cpu_channels()

    def load_model(self, *args: object, **kwargs: object) -> None:
        with mark("load weights"):
            resolve_inner(self.vllm_config.model_config.architectures)
            super().load_model(*args, **kwargs)

    def determine_available_memory(self) -> int:
        with mark("memory profiling"):
            available = int(super().determine_available_memory())
        # Sequences of a model's own beside each request, whose keys and values are not in vLLM's cache.
        num_branches: int = getattr(self.get_model(), "num_branches", 0)
        return available // (1 + num_branches)

    def initialize_from_config(self, *args: object, **kwargs: object) -> None:
        with mark("KV cache"):
            super().initialize_from_config(*args, **kwargs)
            if hasattr(self.get_model(), "num_branches"):
                # As vLLM's: forgotten while asleep.
                with self._maybe_get_memory_pool_context(tag="kv_cache"):
                    num_tokens = self.cache_config.num_gpu_blocks * self.cache_config.block_size
                    self.get_model().allocate_branches(num_tokens)

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
