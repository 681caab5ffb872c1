"""LoRA adapters of a vLLM stage: all are loaded with it, and a batch may have requests with any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from omni_cli.checkpoints.adapters import renamed, unusable
from omni_cli.errors import CheckpointError, StageError
from omni_cli.outputs import GenerateRequest
from omni_cli.stage.protocol import StageSpec

_UNSUPPORTED = "does not support LoRA"


class EngineAdapters:
    """The adapters of one stage, by name."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec = spec
        self._stage = spec.stage
        self._requests: dict[str, LoRARequest] = {}

    @property
    def effective(self) -> dict[str, object]:
        return {"lora": dict(self._stage.lora)} if self._requests else {}

    def engine_args(self) -> dict[str, object]:
        """Return vLLM's `EngineArgs` that keep all adapters loaded; a stage without any pays nothing for LoRA.

        Raises `StageError` for a precision that vLLM has no kernels for.
        """
        if not self._stage.lora:
            return {}
        if current_platform.is_cuda() and self._spec.dtype == "float32":
            raise StageError(
                "vLLM's LoRA kernels for CUDA take float16 and bfloat16, and this model runs in float32",
                stage=self._stage.name,
                hint="--set dtype=bfloat16",
            )
        # On CPUs, vLLM 0.32 gives requests for the base model the last slot's adapter (vllm#48421): it stays empty.
        num_empty = int(current_platform.is_cpu())
        return {"enable_lora": True, "max_loras": len(self._stage.lora) + num_empty}

    def load(self, engine: LLMEngine) -> None:
        """Load all adapters. Raises `CheckpointError` for one that the model cannot use as a whole."""
        role = self._spec.family.role(self._stage.name)
        assert role is not None
        for number, adapter in enumerate(self._stage.adapters, start=1):
            request = LoRARequest(adapter.name, number, str(renamed(adapter, Path(self._spec.model), role)))
            try:
                engine.add_lora(request)
            except (ValueError, RuntimeError) as error:  # whatever vLLM lacks for it
                raise unusable(adapter, " ".join(str(error).split())) from error
            unused = set.intersection(*map(set, engine.collective_rpc("unused_modules", args=(number,))))
            if unused:
                raise unusable(
                    adapter, f"vLLM has no LoRA for this model's `{min(unused)}`", "leave that module out of it"
                )
            self._requests[adapter.name] = request

    def choose(self, request: GenerateRequest) -> LoRARequest | None:
        """Return the adapter of a request; None for the base model."""
        name = self._stage.choose_adapter(request.lora)
        return None if name is None else self._requests[name]

    @contextmanager
    def naming_unsupported(self) -> Iterator[None]:
        """Raise `CheckpointError` if the stage's model, once it is built, takes no adapters."""
        try:
            yield
        except ValueError as error:
            if _UNSUPPORTED not in str(error):
                raise
            name, model = self._stage.name, str(error).partition(" ")[0]
            raise CheckpointError(
                f"stage `{name}` takes no LoRA adapters: vLLM has none for {model}",
                hint=f"remove `lora` from stage `{name}`",
            ) from error
