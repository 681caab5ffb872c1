"""A mixin that makes vLLM's model runners run a diffusion instead of an autoregressive model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.distributed import get_pp_group, get_tp_group
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import ModelRunnerOutput

from omni_cli.execution.ranges import mark
from omni_cli.vllm_integration.diffusion_entry import (
    DiffusionInput,
    Output,
    Unfinished,
    diffusion_entry,
    one_tensor_per_request,
    start_together,
)
from omni_cli.vllm_integration.outputs import Payload, PendingOutput
from omni_cli.vllm_integration.runner_mixins import OmniRunnerMixin


class DiffusionRunnerMixin(OmniRunnerMixin):
    """A diffusion: the model turns each request's tokens and information into one tensor, in one step or several.

    A model that keeps requests between steps forgets those that have ended in its `drop`.
    """

    broadcast_pp_output: bool

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        # The configuration is that of the whole model, with M-RoPE; a diffusion stage has no positions.
        self.uses_mrope = False
        # With an external launcher each pipeline rank has its own engine, which waits for the outputs. vLLM broadcasts
        # logits to them; a diffusion has none, so the last rank's outputs are broadcast instead.
        self._broadcasts = self.broadcast_pp_output
        self.broadcast_pp_output = False
        self.returns_outputs = self.returns_outputs or self._broadcasts

    def load_model(self, *args: object, **kwargs: object) -> None:
        super().load_model(*args, **kwargs)
        model = self.get_model()
        self._diffuse = diffusion_entry(model)
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

    def execute_model(self, *args: object, **kwargs: object) -> object:
        """Run a step as vLLM does; with an external launcher, all pipeline ranks return the last one's outputs."""
        output = super().execute_model(*args, **kwargs)
        if not self._broadcasts or not isinstance(output, IntermediateTensors):
            return output
        pipeline = get_pp_group()
        pipeline.send_tensor_dict(output.tensors, all_gather_group=get_tp_group())
        received = pipeline.broadcast_tensor_dict(src=pipeline.world_size - 1)
        assert received is not None
        return self._make_output([received[str(index)] for index in range(len(received))])

    def _pool(self, hidden_states: object, *args: object, **kwargs: object) -> PendingOutput:
        """Return the outputs; `hidden_states` is the model's result: a tensor, a list or a dict by request."""
        tensors = list(one_tensor_per_request(hidden_states, list(self.input_batch.req_ids)).values())
        if self._broadcasts:
            pipeline = get_pp_group()
            named = {
                str(index): tensor.contiguous() if isinstance(tensor, torch.Tensor) else tensor
                for index, tensor in enumerate(tensors)
            }
            pipeline.broadcast_tensor_dict(named, src=pipeline.world_size - 1)
        return self._make_output(tensors)

    def _make_output(self, results: list[Output]) -> PendingOutput:
        """Build the step's output from one result per request, in batch order."""
        request_ids = list(self.input_batch.req_ids)
        output = ModelRunnerOutput(req_ids=request_ids, req_id_to_index=dict(self.input_batch.req_id_to_index))
        on_device: dict[str, torch.Tensor] = {}
        at_once: dict[str, Payload] = {}
        for request_id, result in zip(request_ids, results, strict=True) if self.returns_outputs else ():
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
