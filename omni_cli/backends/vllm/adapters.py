"""LoRA adapters of a vLLM stage: all are loaded with it, and a batch may have requests with any of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from omni_cli.checkpoints.adapters import EXPERTS, adapted_modules, has_experts, rename_modules, unusable
from omni_cli.config.families import StageRole
from omni_cli.config.stage_keys import Adapter
from omni_cli.core.errors import CheckpointError, StageError
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.protocol import StageSpec

_UNSUPPORTED_MESSAGE = "does not support LoRA"
_UNEXPECTED_MODULE = re.compile(r"but received \['([^']+)'")


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
        arguments = {"enable_lora": True, "max_loras": len(self._stage.lora) + num_empty}
        return arguments | (self._for_experts() if has_experts(*self._checkpoint) else {})

    def _for_experts(self) -> dict[str, object]:
        """Return the arguments for a mixture of experts, whose LoRA vLLM has in Triton alone."""
        modules = {module: adapter for adapter in self._stage.adapters for module in adapted_modules(adapter)}
        if not current_platform.is_cpu():
            # With it, vLLM reads adapters of single experts, too.
            return {"enable_mixed_moe_lora_format": any(map(_is_fused, self._stage.adapters))}
        for module in sorted(modules):
            if EXPERTS.search(module):
                hint = "use an adapter without experts, or run on a GPU"
                raise unusable(modules[module], f"vLLM has LoRA of experts (`{module}`) on GPUs only", hint)
        # Without a choice, vLLM would prepare the experts as well.
        return {"lora_target_modules": sorted({module.rpartition(".")[2] for module in modules})}

    @property
    def _checkpoint(self) -> tuple[Path, StageRole]:
        role = self._spec.family.role(self._stage.name)
        assert role is not None
        return Path(self._spec.model), role

    def load(self, engine: LLMEngine) -> None:
        """Load all adapters. Raises `CheckpointError` for one that the model cannot use as a whole."""
        for number, adapter in enumerate(self._stage.adapters, start=1):
            folder = rename_modules(adapter, *self._checkpoint)
            request = LoRARequest(adapter.name, number, str(folder), is_3d_lora_weight=_is_fused(adapter))
            try:
                engine.add_lora(request)
            except (ValueError, RuntimeError, AssertionError) as error:  # whatever vLLM lacks for it
                unused = set(_UNEXPECTED_MODULE.findall(str(error)))
                if not unused:
                    raise unusable(adapter, " ".join(str(error).split()) or "vLLM cannot load it") from error
            else:
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
            if _UNSUPPORTED_MESSAGE not in str(error):
                raise
            name, model = self._stage.name, str(error).partition(" ")[0]
            raise CheckpointError(
                f"stage `{name}` takes no LoRA adapters: vLLM has none for {model}",
                hint=f"remove `lora` from stage `{name}`",
            ) from error


def _is_fused(adapter: Adapter) -> bool:
    """True for an adapter of experts that are one tensor, PEFT's `target_parameters`."""
    return any(module.endswith((".experts", ".experts.base_layer")) for module in adapted_modules(adapter))
