"""`OmniModelRunnerOutput`: a runner's output for vLLM's scheduler, with payloads next to tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from omni_cli.vllm_integration.diffusion_entry import NoOutput

Payload: TypeAlias = torch.Tensor | NoOutput


@dataclass
class OmniModelRunnerOutput(ModelRunnerOutput):
    """vLLM's output, whose `pooler_output` holds a payload or None per request, in the order of `req_ids`.

    For AR runners these are host tensors of hidden states or codes beside the sampled tokens; for diffusion runners,
    the finished tensor or a `NoOutput`.
    """

    @classmethod
    def with_payloads(cls, output: ModelRunnerOutput, payloads: Mapping[str, Payload]) -> OmniModelRunnerOutput:
        """Copy `output` with a payload for each request named in `payloads`."""
        # Not through the constructor: this runs in every step, and there are many fields.
        copy = cls.__new__(cls)
        copy.__dict__ = output.__dict__ | {"pooler_output": [payloads.get(req_id) for req_id in output.req_ids]}
        return copy


class AsyncOmniModelRunnerOutput(AsyncModelRunnerOutput):
    """An output whose tokens and payloads are still being copied to the host; `get_output` waits for both."""

    def __init__(self, finish: Callable[[], OmniModelRunnerOutput]) -> None:
        """`finish` waits and is called once."""
        self._finish = finish

    def get_output(self) -> OmniModelRunnerOutput:
        return self._finish()


def with_payloads(
    output: ModelRunnerOutput | AsyncModelRunnerOutput,
    payloads: Callable[[ModelRunnerOutput], Mapping[str, Payload]],
) -> OmniModelRunnerOutput | AsyncOmniModelRunnerOutput:
    """Attach `payloads(output)`; for an output that is still being copied to the host, once the copy is done."""
    if isinstance(output, AsyncModelRunnerOutput):

        def finish() -> OmniModelRunnerOutput:
            plain = output.get_output()
            return OmniModelRunnerOutput.with_payloads(plain, payloads(plain))

        return AsyncOmniModelRunnerOutput(finish)
    return OmniModelRunnerOutput.with_payloads(output, payloads(output))
