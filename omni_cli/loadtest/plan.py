"""A load test as a benchmark: one variant per server or per load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from omni_cli.bench.benchmark import Plan
from omni_cli.bench.environment import read_environment
from omni_cli.bench.record_builder import RecordBuilder
from omni_cli.bench.variant_configs import VariantConfig
from omni_cli.errors import UsageError
from omni_cli.files import scratch_folder
from omni_cli.loadtest.traffic import ClosedLoop, Traffic
from omni_cli.loadtest.variant import ServerVariant
from omni_cli.loadtest.workload import ServerWorkload
from omni_cli.machine import allow_open_files
from omni_cli.openai_api.servers import Target, find_targets

_SPARE_FILES = 64


@contextmanager
def server_plan(
    urls: Sequence[str],
    traffics: Sequence[Traffic],
    workload: ServerWorkload,
    *,
    model: str | None,
    api_key: str | None,
    request_timeout_s: float,
    command: tuple[str, ...],
    is_varied: bool = False,
) -> Iterator[Plan]:
    """Plan the test of these servers under these loads; asks each for its models. Raises `OmniError`.

    `is_varied`: variants are named by their load even if there is only one.
    """
    _allow_open_files(traffics, workload.num_requests)
    pairs = [(target, traffic) for target in find_targets(urls, model, api_key) for traffic in traffics]
    variants = _variant_configs(pairs, varied=is_varied or len(traffics) > 1)
    environment = read_environment()
    environment["versions"]["aiohttp"] = version("aiohttp")

    def launch(index: int) -> ServerVariant:
        target, traffic = pairs[index]
        return ServerVariant(
            variants[index].name, target, workload, traffic, api_key=api_key, request_timeout_s=request_timeout_s
        )

    with scratch_folder("omni-bench-") as folder:
        builder = RecordBuilder(
            variants, command=command, environment=environment, workload=workload.describe(), folder=folder
        )
        yield Plan(builder, launch)


def _variant_configs(pairs: Sequence[tuple[Target, Traffic]], *, varied: bool) -> list[VariantConfig]:
    """Return variants named by the server or the load; a repeated name is A against A."""
    variants: list[VariantConfig] = []
    for target, traffic in pairs:
        # An address may change from run to run, so a baseline is compared by its requests.
        settings: dict[str, object] = {"url": target.url, "model": target.model}
        name = target.url.partition("//")[2]
        if varied:
            settings |= traffic.settings
            (value,) = traffic.settings.items()
            name = "=".join(map(str, value))
        earlier = sum(variant.name.partition(" (")[0] == name for variant in variants)
        variants.append(VariantConfig(f"{name} ({earlier + 1})" if earlier else name, settings=settings))
    return variants


def _allow_open_files(traffics: Sequence[Traffic], num_requests: int | None) -> None:
    """Raise the limit of open files, because every request is a connection. Raises `UsageError` if it is too low."""
    open_at_once = 0
    for traffic in traffics:
        sent = num_requests or traffic.default_requests
        open_at_once = max(open_at_once, min(traffic.concurrency, sent) if isinstance(traffic, ClosedLoop) else sent)
    needed = open_at_once + _SPARE_FILES
    allowed = allow_open_files(needed)
    if allowed < needed:
        message = f"up to {open_at_once} requests at once need more open files than this system allows ({allowed})"
        raise UsageError(message, hint="raise the limit with `ulimit -Hn`, or send fewer: `--num-requests`")
