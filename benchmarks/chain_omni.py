"""omni's side of `chain_throughput.py`: eight concurrent requests through the chain, and through each stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from chain_workload import CHAIN, PROMPTS, RequestWork, Round

from omni_cli.checkpoints.files import read_family, read_model_kind
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import EngineConfig
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.engine.process.fork_server import ForkServer
from omni_cli.engine.process.stage_client import StageClient
from omni_cli.requests.contents import StageIO
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, RequestResult, TextOutput
from omni_cli.stage.messages import AddRequest, Failure, Report, RequestDone, StageReady
from omni_cli.stage.protocol import StageSpec


class OmniSide:
    """The chain as `omni generate` runs it, and the same stages again, each to be run alone."""

    def __init__(self, config: EngineConfig) -> None:
        self._llm = OmniLLM(config)
        self._stages = [SingleStage(config, stage.name) for stage in config.stages]

    async def start(self) -> None:
        await self._llm.start()
        # One at a time: the imports are done, and nothing is measured yet.
        for stage in self._stages:
            await stage.start()

    async def close(self) -> None:
        for stage in self._stages:
            await stage.close()
        await self._llm.close()

    async def run(self) -> Round:
        """Run the chain, then each stage alone, fed with the output of the stage before it in the same round."""
        started_s = time.perf_counter()
        results = await asyncio.gather(*(self._request(seed, prompt) for seed, prompt in enumerate(PROMPTS)))
        seconds = {CHAIN: time.perf_counter() - started_s}
        stage_outputs: list[bytes | None] = [None] * len(PROMPTS)
        for stage in self._stages:
            is_last = stage is self._stages[-1]
            seconds[stage.name], done = await stage.run(_stage_requests(stage_outputs, wants_stage_output=not is_last))
            stage_outputs = [report.stage_output for report in done]
        return Round(seconds, tuple(_work(result) for result in results))

    async def _request(self, seed: int, prompt: str) -> RequestResult:
        async for event in self._llm.generate(GenerateRequest(str(seed), prompt, seed=seed)):
            last = event
        if last.error is not None:
            raise last.error
        return last


class SingleStage:
    """One stage in a separate process, outside any chain."""

    def __init__(self, config: EngineConfig, name: str) -> None:
        self.config = config
        self.name = name
        self._fork_server = ForkServer(config.backends)
        self._client: StageClient | None = None
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()

    async def start(self) -> None:
        model = resolve_model(self.config.model)
        spec = StageSpec(
            stage=self.config.stage(self.name),
            model=model,
            family=read_family(model),
            architecture=read_model_kind(model),
            dtype=self.config.dtype,
            seed=self.config.seed,
            trust_remote_code=self.config.trust_remote_code,
        )
        self._client = StageClient(spec, lambda _, report: self._reports.put_nowait(report))
        await self._client.start(self._fork_server.start())
        while not isinstance(await self._next(), StageReady):
            pass

    async def run(self, requests: Sequence[GenerateRequest]) -> tuple[float, list[RequestDone]]:
        """Seconds from the first request sent to the last one done, and their results in the given order."""
        started_s = time.perf_counter()
        for request in requests:
            self._client.send(AddRequest(request))
        done: dict[str, RequestDone] = {}
        while len(done) < len(requests):
            report = await self._next()
            if isinstance(report, RequestDone):
                done[report.request_id] = report
        return time.perf_counter() - started_s, [done[request.request_id] for request in requests]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        self._fork_server.stop()

    async def _next(self) -> Report:
        report = await self._reports.get()
        if report is None:
            report = self._client.unexpected_end()
        if isinstance(report, Failure):
            raise report.error(self.name)
        return report


def _stage_requests(stage_outputs: Sequence[bytes | None], *, wants_stage_output: bool) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            str(seed),
            prompt="" if stage_output else prompt,
            seed=seed,
            stage=StageIO(input=stage_output, wants_output=wants_stage_output),
        )
        for seed, (prompt, stage_output) in enumerate(zip(PROMPTS, stage_outputs, strict=True))
    ]


def _work(result: RequestResult) -> RequestWork:
    text = next(output for output in result.outputs if isinstance(output, TextOutput))
    audio = next(output for output in result.outputs if isinstance(output, AudioOutput))
    talker = next(trace for trace in result.stages if trace.name == "talker")
    return RequestWork(text.token_ids, talker.output_token_ids, audio.samples.size)
