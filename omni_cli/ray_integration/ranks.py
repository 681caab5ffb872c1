"""Ray for a stage's ranks, with `distributed_executor_backend: ray`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from omni_cli.config.schema import ARStageConfig, StageConfig


@contextmanager
def ray_for_ranks(stage: StageConfig) -> Iterator[None]:
    """Provide Ray as long as the stage needs it; does nothing for a stage that does not. Raises `OmniError`.

    vLLM uses a running Ray. One that it starts itself waits for a dashboard, is open to everyone on the machine, and
    leaves files and shared memory behind.
    """
    if not isinstance(stage, ARStageConfig) or stage.distributed_executor_backend != "ray":
        yield
        return
    from omni_cli.ray_integration.cluster import RayCluster

    # In the main thread, Ray would take over the signals.
    with ThreadPoolExecutor(1, thread_name_prefix="omni-ray") as thread:
        # Its messages go to the log of this process.
        cluster = RayCluster(verbose=True)
        thread.submit(cluster.connect).result()
        try:
            yield
        finally:
            thread.submit(cluster.close).result()
