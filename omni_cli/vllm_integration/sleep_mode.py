"""vLLM's sleep mode: a stage without requests gives its device's memory back until it is woken."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.engine.llm_engine import LLMEngine


class SleepMode:
    """The part of a stage that sleeps. On a CPU, as in vLLM, it keeps its memory."""

    engine: LLMEngine

    def sleep(self, level: int) -> bool:
        """Move weights to the host and forget the KV cache; return True."""
        self.engine.sleep(level)
        return True

    def wake_up(self, tags: Sequence[str] | None) -> bool:
        """Put back what `tags` name, of `weights` and `kv_cache`, by default both; return True if some is missing."""
        return not self.engine.wake_up(None if tags is None else list(tags))
