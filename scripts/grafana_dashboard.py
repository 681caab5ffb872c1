"""Make Grafana's dashboard for `omni serve`, deploy/grafana/omni.json, from the server's own list of metrics.

    python scripts/grafana_dashboard.py [--write]

A metric's type decides its query and its help text is the panel's description, so a panel is a line below. Exit code 0:
the file is up to date; 1: it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from omni_cli.core.energy import EnergyMeter
from omni_cli.serve.metrics import Metrics

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "omni.json"
COLUMNS, WIDTH, HEIGHT = 3, 8, 8
QUANTILES = (0.5, 0.95)
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
ONLY = '{instance=~"$instance"}'


@dataclass(frozen=True)
class Panel:
    """A graph of metrics of the same unit, with a line per value of their labels `by`."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    by: tuple[str, ...] = ()


PANELS = (
    Panel("Engines ready", "none", ("omni_engine_ready",)),
    Panel("Requests in flight", "none", ("omni_requests_in_flight", "omni_requests_in_flight_limit")),
    Panel("Queue of video jobs", "none", ("omni_video_jobs",), ("status",)),
    Panel("Requests", "reqps", ("omni_requests",), ("path", "status")),
    Panel("Errors", "ops", ("omni_errors",), ("kind",)),
    Panel("Restarts of stages", "ops", ("omni_stage_restarts",), ("stage",)),
    Panel("Latency per stage", "s", ("omni_stage_latency_seconds",), ("stage",)),
    Panel("Time to first token per stage", "s", ("omni_stage_time_to_first_token_seconds",), ("stage",)),
    Panel("Peak memory per stage, device and host", "bytes", ("omni_stage_peak_memory_bytes",), ("stage", "where")),
    Panel("Duration of requests", "s", ("omni_request_duration_seconds",), ("path",)),
    Panel("Time to first token", "s", ("omni_time_to_first_token_seconds",), ("path",)),
    Panel("Time to first audio", "s", ("omni_time_to_first_audio_seconds",), ("path",)),
    Panel("Output tokens per second", "none", ("omni_generation_tokens",), ("stage",)),
    Panel("Input tokens per second", "none", ("omni_prompt_tokens",), ("stage",)),
    Panel("Denoising steps per second", "none", ("omni_denoising_steps",), ("stage",)),
    Panel("Audio seconds per second", "none", ("omni_audio_seconds",)),
    Panel("Real-time factor", "none", ("omni_real_time_factor",), ("path",)),
    Panel("Images, videos and frames per second", "none", ("omni_images", "omni_videos", "omni_video_frames")),
    Panel("Size of kept videos", "bytes", ("omni_video_store_bytes",)),
    Panel("Power per device", "watt", ("omni_energy_joules",), ("device",)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Update the file.")
    options = parser.parse_args()
    text = dashboard()
    if options.write:
        FILE.write_text(text)
    return 0 if FILE.is_file() and FILE.read_text() == text else 1


def server_metrics() -> Metrics:
    """Return those of a server, as they are before the first request."""
    metrics = Metrics(max_requests=1)
    metrics.watch_energy(EnergyMeter({}))
    metrics.watch_stages(list)
    metrics.watch_videos(dict, int)
    return metrics


def families() -> dict[str, Metric]:
    """Every metric of a server, by name."""
    collected = server_metrics().registry.collect()
    return {family.name: family for family in collected if family.name.startswith("omni_")}


def table() -> list[str]:
    """The rows of docs/metrics.md: name with labels, kind and description."""
    labels = {
        family.name: getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ())
        for collector in server_metrics().registry._collector_to_names
        for family in collector.collect()
    }
    rows = []
    for name, family in families().items():
        named = f"{name}_total" if family.type == "counter" else name
        of = f"{{{','.join(labels[name])}}}" if labels[name] else ""
        rows.append(f"| `{named}{of}` | {family.type} | {family.documentation} |")
    return rows


def dashboard() -> str:
    """Return the dashboard as JSON; a KeyError names a panel's metric that no server has."""
    known = families()
    document = {
        "uid": "omni-serve",
        "title": "omni serve",
        "tags": ["omni"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource(), _instance()]},
        "panels": [_panel(number, panel, known) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(document, indent=2) + "\n"


def _panel(number: int, panel: Panel, known: dict[str, Metric]) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    queries = [query for name in panel.metrics for query in _queries(known[name], panel)]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": " ".join(known[name].documentation for name in panel.metrics),
        "datasource": DATASOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(queries)
        ],
    }


def _queries(metric: Metric, panel: Panel) -> list[tuple[str, str]]:
    """Expressions for a metric and the names of their lines."""
    labels = ", ".join(panel.by)
    by = f" by ({labels})" if labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in panel.by) or metric.name
    match metric.type:
        case "gauge":
            return [(f"sum{by} ({metric.name}{ONLY})", legend)]
        case "counter":
            return [(f"sum{by} (rate({metric.name}_total{ONLY}[$__rate_interval]))", legend)]
        case _:
            buckets = f"sum by (le, {labels}) (rate({metric.name}_bucket{ONLY}[$__rate_interval]))"
            return [(f"histogram_quantile({q}, {buckets})", f"{legend} p{q * 100:.0f}") for q in QUANTILES]


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    """The servers to show; all at first."""
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": DATASOURCE,
        "query": "label_values(omni_engine_ready, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    sys.exit(main())
