"""Diffusions on vLLM: the base of their models, the call and the accepted results, and a mixin for vLLM's runners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from vllm.model_executor.layers.pooler import DispatchPooler, IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import ModelRunnerOutput

from omni_cli.backends.execution.copies import OutputCopy
from omni_cli.backends.execution.ranges import mark
from omni_cli.backends.vllm.outputs import NoOutput, Payload, PendingOutput
from omni_cli.backends.vllm.runner_mixins import OmniRunnerMixin

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DiffusionInput:
    """One request of a batch: `token_ids` (num_tokens,) on the device; `information` by name, with host tensors."""

    request_id: str
    token_ids: torch.Tensor
    information: Mapping[str, Any]


@dataclass(frozen=True)
class Unfinished:
    """Returned in place of a tensor for a request that needs more steps; see `StepwiseScheduler`."""


NOT_FINISHED = Unfinished()
Output: TypeAlias = torch.Tensor | NoOutput | Unfinished


def one_tensor_per_request(result: object, request_ids: list[str]) -> dict[str, Output]:
    """Split a model's result into one tensor per request, or the reason why there is none.

    Accepts a tensor whose first dimension is the batch, a list in batch order, or a dict by request id. If the number
    is wrong, the tensors cannot be assigned, and no request gets one.
    """
    if isinstance(result, Mapping):
        unknown = [str(name) for name in result if name not in request_ids]
        if unknown:
            logger.warning("the model answered requests that are not in the batch: %s", ", ".join(unknown))
        nothing = NoOutput(
            "the model returned nothing for it"
            + (f", but something for {', '.join(unknown)}, not in the batch" if unknown else "")
        )
        return {request_id: _tensor(result.get(request_id, nothing)) for request_id in request_ids}
    if not isinstance(result, (torch.Tensor, list, tuple)):
        none = NoOutput(f"a diffusion model returns a tensor, a list or a dict, not {type(result).__name__}")
        return dict.fromkeys(request_ids, none)
    if isinstance(result, torch.Tensor) and not result.dim():
        result = ()  # a scalar has no batch dimension
    if len(result) != len(request_ids):
        none = NoOutput(f"the model returned {len(result)} tensors for {len(request_ids)} requests")
        return dict.fromkeys(request_ids, none)
    return {request_id: _tensor(output) for request_id, output in zip(request_ids, result, strict=True)}


def _tensor(output: object) -> Output:
    if isinstance(output, (torch.Tensor, NoOutput, Unfinished)):
        return output
    return NoOutput(f"the model returned {type(output).__name__}, not a tensor")


def start_together(tensors: Mapping[str, torch.Tensor], copy: OutputCopy) -> Callable[[], dict[str, torch.Tensor]]:
    """Start copying `tensors` to the host; the returned function waits and returns them by name.

    One transfer per dtype.
    """
    if len({tensor.dtype for tensor in tensors.values()}) != 1:
        by_dtype: dict[torch.dtype, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            by_dtype.setdefault(tensor.dtype, {})[name] = tensor
        parts = [start_together(group, copy) for group in by_dtype.values()]
        return lambda: {name: tensor for part in parts for name, tensor in part().items()}
    if len(tensors) == 1:
        ((name, tensor),) = tensors.items()
        only = copy.start(tensor)
        return lambda: {name: only.get()}
    shapes = [tensor.shape for tensor in tensors.values()]
    together = copy.start(torch.cat([tensor.reshape(-1) for tensor in tensors.values()]))

    def rebuild_tensors() -> dict[str, torch.Tensor]:
        flat = together.get().split([shape.numel() for shape in shapes])
        return {name: part.view(shape) for name, part, shape in zip(tensors, flat, shapes, strict=True)}

    return rebuild_tensors


class DiffusionModel(nn.Module, IsAttentionFree):
    """A model without logits and KV cache; subclasses define `sample`.

    It takes a list of `DiffusionInput`, and returns what `one_tensor_per_request` accepts.
    """

    is_pooling_model = True

    def __init__(self) -> None:
        super().__init__()
        self.pooler = DispatchPooler({"plugin": IdentityPooler()})

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return (num_tokens, 1): `sample` embeds its own inputs."""
        return input_ids.unsqueeze(-1).float()

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: object = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Serve vLLM's profiling run, which is its only caller."""
        return self.embed_input_ids(input_ids)


class DiffusionRunnerMixin(OmniRunnerMixin):
    """A diffusion: the model turns each request's tokens and information into one tensor, in one step or several.

    A model that keeps requests between steps forgets those that have ended in its `drop`.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        # The configuration is that of the whole model, with M-RoPE; a diffusion stage has no positions.
        self.uses_mrope = False

    def load_model(self, *args: object, **kwargs: object) -> None:
        super().load_model(*args, **kwargs)
        model = self.get_model()
        self._diffuse: Callable[..., object] = model.sample
        self._drop: Callable[[str], None] | None = getattr(model, "drop", None)

    def _forget_request(self, request_id: str) -> None:
        super()._forget_request(request_id)
        if self._drop is not None:
            self._drop(request_id)

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: object,
    ) -> object:
        assert input_ids is not None
        inputs = [
            DiffusionInput(
                request_id=span.request_id,
                token_ids=input_ids[span.row : span.row + span.length],
                information=self.request_payloads[span.request_id].information,
            )
            for span in self._spans()
        ]
        with mark("model forward"):
            if intermediate_tensors is not None:
                return self._diffuse(inputs, intermediate_tensors=intermediate_tensors)
            return self._diffuse(inputs)

    def _pool(self, hidden_states: object, *args: object, **kwargs: object) -> PendingOutput:
        """Return the step's output; `hidden_states` is the model's result: a tensor, a list or a dict by request."""
        request_ids = list(self.input_batch.req_ids)
        results = one_tensor_per_request(hidden_states, request_ids) if self.returns_outputs else {}
        output = ModelRunnerOutput(req_ids=request_ids, req_id_to_index=dict(self.input_batch.req_id_to_index))
        on_device: dict[str, torch.Tensor] = {}
        at_once: dict[str, Payload] = {}
        for request_id, result in results.items():
            if isinstance(result, torch.Tensor) and result.device.type == self.device.type:
                on_device[request_id] = result
            elif not isinstance(result, Unfinished):  # a failure, or a host tensor, as of transformers' vocoder
                at_once[request_id] = result
        with mark("output copy"):
            arrived = start_together(on_device, self.output_copy)

        def finish() -> ModelRunnerOutput:
            payloads = {**arrived(), **at_once}
            output.pooler_output = [payloads.get(request_id) for request_id in request_ids]
            return output

        return PendingOutput(finish)
