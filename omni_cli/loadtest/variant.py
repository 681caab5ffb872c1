"""A server as a variant of the harness: a connection instead of a variant's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_cli.errors import InputError
from omni_cli.openai_api.reading import ServerAnswer

if TYPE_CHECKING:
    import numpy as np

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from omni_cli.bench.outputs import hash_arrays, save_arrays
from omni_cli.bench.protocol import Load, Loaded, Loading, Ran
from omni_cli.bench.variant_process import VariantError
from omni_cli.loadtest.failures import hint_on
from omni_cli.loadtest.traffic import OpenLoop, Traffic
from omni_cli.loadtest.window import Window, window_metrics, window_work
from omni_cli.loadtest.workload import RequestMaker, ServerWorkload
from omni_cli.metrics import E2E
from omni_cli.openai_api.client import Client, Outcome
from omni_cli.openai_api.servers import Target
from omni_cli.record import describe_failures


class ServerVariant:
    """Sends windows of requests to one server. Owned by one event loop."""

    pid = None

    def __init__(
        self,
        name: str,
        target: Target,
        workload: ServerWorkload,
        traffic: Traffic,
        *,
        api_key: str | None,
        request_timeout_s: float,
    ) -> None:
        self.name = name
        self._target = target
        self._workload = workload
        self._traffic = traffic
        self._client = Client(target.url, api_key=api_key, timeout_s=request_timeout_s)
        count = workload.num_requests or traffic.default_requests
        self._maker = RequestMaker(workload, count, target)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Open the client."""
        await self._stack.enter_async_context(self._client)

    async def load(self, _request: Load | None, _on_loading: Callable[[Loading], None]) -> Loaded:
        """Load nothing: the server has loaded its model."""
        return Loaded((), server=self._target.description)

    async def run(self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None) -> Ran:
        """Run one window. Raises `VariantError` if none of its requests was answered.

        Each request has its own timeout, so `timeout_s` is not needed for a server that hangs.
        """
        bodies = await asyncio.to_thread(self._maker.bodies, number)
        endpoint = self._workload.endpoint

        async def send(index: int, due_s: float) -> Outcome:
            return await self._client.post(endpoint.path, bodies[index], self._maker.reader(), due_s)

        began_s = time.perf_counter()
        outcomes = await self._traffic.run(send, len(bodies), number)
        window = Window(tuple(outcomes), began_s, time.perf_counter(), isinstance(self._traffic, OpenLoop))
        if not window.answers:
            raise self._no_answer(window, when)
        return await asyncio.to_thread(self._ran, window, outputs)

    async def close(self) -> None:
        """Close the client. Safe to call twice."""
        await self._stack.aclose()

    def _ran(self, window: Window, outputs: Path | None) -> Ran:
        arrays = answer_arrays(window.answers)
        if outputs is not None:
            save_arrays(outputs, arrays)
        metrics = window_metrics(window, self._workload.slos)
        return Ran(
            e2e_s=metrics.pop(E2E),
            metrics=metrics,
            work=window_work(window),
            # Missing answers cannot be compared.
            output_sha256=None if window.failures else hash_arrays(arrays),
            accounted={},
            memory={},
            lasted_s=window.lasted_s,
            requests=window.columns(),
            failures=window.failures,
        )

    def _no_answer(self, window: Window, when: str) -> VariantError:
        failures = window.failures
        return VariantError(
            f"`{self.name}` answered none of {len(window.outcomes)} requests ({when}): {describe_failures(failures)}",
            hint=hint_on(failures),
        )


def answer_arrays(answers: Sequence[ServerAnswer]) -> dict[str, np.ndarray]:
    """Return arrays like `omni_cli.bench.outputs.output_arrays`: text as UTF-8 bytes, samples float32, pixels uint8."""
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    for number, answer in enumerate(answers):
        if answer.text:
            arrays[f"{number}.tokens.text"] = np.frombuffer("".join(answer.text).encode(), np.uint8)
        if answer.pcm:
            whole = len(answer.pcm) // 2 * 2
            arrays[f"{number}.audio.0"] = np.frombuffer(bytes(answer.pcm[:whole]), "<i2").astype(np.float32) / 2**15
        for position, image in enumerate(answer.images):
            arrays[f"{number}.image.{position}"] = _pixels(image)
    return arrays


def _pixels(image: bytes) -> np.ndarray:
    """Decode to uint8 (height, width, 3); return the bytes unchanged if they are not an image."""
    import numpy as np

    from omni_cli.inputs.media.reading import MediaReader, in_memory

    try:
        with in_memory(image) as file:
            return MediaReader(lambda _note: None).image(file, "image of the answer")
    except InputError:
        return np.frombuffer(image, np.uint8)
