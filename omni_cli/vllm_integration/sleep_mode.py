"""vLLM's sleep mode: a stage without requests gives its device's memory back until it is woken."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from omni_cli.errors import UsageError
from omni_cli.stage.protocol import StageSpec


class SleepMode:
    """The part of a stage that sleeps. On a CPU, as in vLLM, it keeps its memory."""

    engine: LLMEngine
    spec: StageSpec

    def sleep(self, level: int) -> bool:
        """Move weights to the host and forget the KV cache; return True. Raises `UsageError` if it cannot."""
        name = self.spec.stage.name
        if level == 2:
            raise UsageError(f"stage `{name}` cannot read its weights again, as level 2 needs", hint="use level 1")
        if not current_platform.is_cpu() and not self.engine.vllm_config.model_config.enable_sleep_mode:
            hint = f"--set {name}.enable_sleep_mode=true"
            raise UsageError(f"stage `{name}` was loaded without vLLM's sleep mode", hint=hint)
        self.engine.sleep(level)
        return True

    def wake_up(self, tags: Sequence[str] | None) -> bool:
        """Put back what `tags` name, of `weights` and `kv_cache`, by default both; return True if some is missing."""
        return not self.engine.wake_up(None if tags is None else list(tags))
