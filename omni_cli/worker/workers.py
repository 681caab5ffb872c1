"""How a vLLM worker gets our runner.

`Worker.init_device` (CUDA) and `CPUWorker.init_device` build the runner inside a long body that is not ours to copy.
So vLLM builds its own V1 runner, and its class is changed to ours right after: our runners derive from exactly that
class, add hooks and no constructor, and so nothing is built twice and nothing of vLLM's is patched.
"""

from __future__ import annotations

from typing import Any, ClassVar


class OmniWorkerMixin:
    """`runner_cls` derives from the V1 runner that the vLLM worker builds."""

    runner_cls: ClassVar[type]

    def init_device(self, *args: Any, **kwargs: Any) -> None:
        super().init_device(*args, **kwargs)
        built = type(self.model_runner)
        if built not in self.runner_cls.__mro__:
            raise RuntimeError(
                f"vLLM built {built.__module__}.{built.__qualname__}, which {self.runner_cls.__name__} does not derive "
                "from: omni needs the V1 model runner (VLLM_USE_V2_MODEL_RUNNER=0 before the configuration is built)"
            )
        self.model_runner.__class__ = self.runner_cls
        self.model_runner.init_omni()
