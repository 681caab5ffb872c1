"""Requests of a stage's own while it loads, so that the first real one compiles, captures and finds out nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from vllm.platforms import current_platform

from omni_cli.errors import InputError
from omni_cli.execution.ranges import mark
from omni_cli.outputs import GenerateRequest
from omni_cli.stage.messages import Failure, Report
from omni_cli.stage.protocol import StageSpec


class WarmUp:
    """The part of a stage that warms it up."""

    spec: StageSpec

    def add(self, request: GenerateRequest) -> None:
        raise NotImplementedError

    def has_work(self) -> bool:
        raise NotImplementedError

    def step(self) -> list[Report]:
        raise NotImplementedError

    def warm_up(self) -> None:
        """Run requests; on a CPU, which compiles nothing, one of an AR stage, to find out if the kernels can run."""
        if not current_platform.is_cpu() or self.spec.stage.kind == "ar":
            with mark("warm-up requests"):
                self.run_warm_up(1 if current_platform.is_cpu() else None)

    def run_warm_up(self, num_batches: int | None = None) -> None:
        """Run `warm_up_batches`. Raises the engine's error, and that of a diffusion, whose graphs come no later."""
        for requests in itertools.islice(self.warm_up_batches(), num_batches):
            for number, request in enumerate(requests):
                try:
                    self.add(replace(request, request_id=f"warm-up {number}"))
                except InputError:  # a model of something else than text, or settings that requests override
                    return
            while self.has_work():
                for report in self.step():
                    if isinstance(report, Failure) and self.spec.stage.kind == "diffusion":
                        raise report.error(self.spec.stage.name)

    def warm_up_batches(self) -> Iterable[Sequence[GenerateRequest]]:
        """Return requests that run one batch after another and together go every way that a request can go."""
        return ()
