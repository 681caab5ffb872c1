"""`omni tune --url`: searches the load of a running server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from omni_cli.cli.bench.options import DEFAULT_INPUT_LEN
from omni_cli.cli.loadtest.reading import read_endpoint, read_traffics
from omni_cli.cli.tune.options import OBJECTIVES, TuneOptions
from omni_cli.cli.tune.run import SettingsSearch
from omni_cli.core.errors import UsageError
from omni_cli.measure.bench.benchmark import Plan
from omni_cli.measure.bench.slo import parse_slos
from omni_cli.measure.bench.tuning import MAX_SETTINGS, OPTION, Space, TuneLimits, expand_values
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.loadtest.plan import server_plan
from omni_cli.measure.loadtest.workload import ServerWorkload
from omni_cli.openai_api.client import parse_url

_DEFAULT = "concurrency=1..16"
_REQUEST_TIMEOUT_S = 600.0
_ENDPOINTS = {"tokens_per_second": "chat", "images_per_second": "images"}
# Options of a profile's stages, which a running server does not take.
_OF_PROFILES = ("profile", "set_", "requests", "batch_size", "quality", "max_memory")


def server_search(options: TuneOptions, margin: float) -> SettingsSearch:
    """A search over loads. Raises `UsageError`."""
    for name in _OF_PROFILES:
        if getattr(options, name) is not None:
            flag = "--" + name.strip("_").replace("_", "-") if name != "requests" else "REQUESTS.jsonl"
            raise UsageError(f"`{flag}` does not apply to a running server", hint="omit it, or omit `--url`")
    if options.stage != "all":
        raise UsageError("`--stage` does not apply to a running server", hint="omit it, or omit `--url`")
    url, seed = parse_url(options.url or ""), options.seed or 0
    texts = [expand_values(text) for text in options.search or [_DEFAULT]]
    loads = {}
    for text in texts:
        for traffic in read_traffics([text], None, None, seed, option=OPTION):
            ((key, value),) = traffic.settings.items()
            loads[f"{key}={value}"] = traffic
    if len(loads) > MAX_SETTINGS:
        raise UsageError(f"these are {len(loads)} loads, and at most {MAX_SETTINGS} can be compared at once")
    endpoint = read_endpoint(options.endpoint or "chat", "text", options.output_len, ignore_eos=True)
    wanted = _ENDPOINTS.get(options.objective, endpoint.name)
    if endpoint.name != wanted:
        raise UsageError(
            f"answers of the endpoint `{endpoint.name}` have no `{options.objective}`",
            hint=f"add `--endpoint {wanted}`, or use another `--objective`",
        )
    workload = ServerWorkload(
        endpoint=endpoint,
        # A slow load would take minutes to send as many as a fast one.
        num_requests=None,
        input_len=options.input_len or DEFAULT_INPUT_LEN,
        output_len=options.output_len if endpoint.name == "chat" else None,
        seed=seed,
        load={},
        slos=parse_slos(tuple(options.slo or ()), endpoint.metrics),
    )

    def plan(variants: Sequence[VariantConfig]) -> AbstractContextManager[Plan]:
        return server_plan(
            [url],
            [loads[variant.name] for variant in variants],
            workload,
            model=options.model,
            api_key=os.environ.get("OPENAI_API_KEY"),
            request_timeout_s=_REQUEST_TIMEOUT_S,
            command=(),
            is_varied=True,
        )

    settings = tuple(VariantConfig(name, settings=traffic.settings) for name, traffic in loads.items())
    has_slo = bool(workload.slos) and options.objective != "goodput"
    limits = TuneLimits(has_slo=has_slo, compares_outputs=False)  # each load has requests of its own
    described = workload.describe()
    return SettingsSearch(described, Space(settings, {}), OBJECTIVES[options.objective], margin, limits, plan, url=url)
