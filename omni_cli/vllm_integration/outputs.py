"""Payloads beside the tokens of a runner's output: its `pooler_output` has one or None per request, as `req_ids`.

For AR runners a payload is a host tensor of hidden states or codes, for diffusion runners the finished tensor or a
`NoOutput`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from omni_cli.vllm_integration.diffusion_entry import NoOutput

Payload: TypeAlias = torch.Tensor | NoOutput


class PendingOutput(AsyncModelRunnerOutput):
    """An output whose tokens and payloads are still being copied to the host; `get_output` waits for both."""

    def __init__(self, finish: Callable[[], ModelRunnerOutput]) -> None:
        """`finish` waits and is called once."""
        self._finish = finish

    def get_output(self) -> ModelRunnerOutput:
        return self._finish()


def with_payloads(
    output: ModelRunnerOutput | AsyncModelRunnerOutput,
    payloads: Callable[[ModelRunnerOutput], Mapping[str, Payload]],
) -> ModelRunnerOutput | PendingOutput:
    """Attach `payloads(output)` to a copy; for an output that is still being copied to the host, once that is done."""

    def attach(plain: ModelRunnerOutput) -> ModelRunnerOutput:
        by_request, attached = payloads(plain), copy.copy(plain)
        attached.pooler_output = [by_request.get(request_id) for request_id in plain.req_ids]
        return attached

    if isinstance(output, AsyncModelRunnerOutput):
        return PendingOutput(lambda: attach(output.get_output()))
    return attach(output)
