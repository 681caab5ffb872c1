"""A profile as a document: the time and memory of a workload by part, and what to try."""

from __future__ import annotations

from omni_cli.metrics import E2E
from omni_cli.profile_record import Profile
from omni_cli.report.bench_text import shown
from omni_cli.report.bench_units import quantity, ratio
from omni_cli.report.html.elements import Advice, Document, Paragraph, Part, Verdict, get_sections
from omni_cli.report.html.machine import get_device, environment_parts, reproduce_parts, sentence, workload_title
from omni_cli.report.html.profile_figures import (
    activity_figure,
    memory_figures,
    request_figure,
    steps_figures,
)
from omni_cli.report.html.profile_tables import (
    copies_table,
    limits_tables,
    memory_tables,
    operators_table,
    overhead_table,
    ranges_table,
)
from omni_cli.report.units import count


def profile_page_document(name: str, profile: Profile, source: str) -> Document:
    """Return the document of a profile; `name` is the prefix of its figures' ids."""
    stages = profile.stages
    return Document(
        kind="Profile",
        source=source,
        title=workload_title(profile.workload),
        details=" · ".join(filter(None, [get_device(profile.environment), _counts(profile)])),
        created=profile.created,
        verdict=_verdict(profile),
        advice=tuple(
            Advice(
                f"{hint.stage}: {hint.message}." if hint.stage else sentence(hint.message),
                sentence(hint.advice),
                "Hint",
            )
            for hint in profile.hints
        ),
        sections=get_sections(
            [
                ("Where the time went", [request_figure(name, profile), *map(ranges_table, stages)]),
                ("Step by step", steps_figures(name, stages)),
                (
                    "What the devices did",
                    [activity_figure(name, stages), copies_table(stages), *map(operators_table, stages)],
                ),
                (
                    "Memory",
                    [*memory_figures(name, stages), *(part for stage in stages for part in memory_tables(stage))],
                ),
                ("Limits", limits_tables(stages)),
                ("What profiling cost", [overhead_table(profile)]),
                ("Notes", _notes(profile)),
                ("Environment", environment_parts(profile.environment, profile.workload)),
                ("Reproduce", reproduce_parts(profile.command, profile.environment)),
            ]
        ),
    )


def _counts(profile: Profile) -> str:
    warm = f", {profile.num_iters_warmup} to warm up" if profile.num_iters_warmup else ""
    return f"{count(profile.num_iters, 'iteration')}{warm}"


def _verdict(profile: Profile) -> Verdict:
    sentences = []
    largest = max(profile.stage_seconds.items(), key=lambda item: item[1], default=None)
    if largest is not None and profile.e2e_s > 0:
        part, seconds = largest
        sentences.append(
            f"{shown(part)} takes {seconds / profile.e2e_s:.0%} of it, {quantity(E2E, seconds, profile.e2e_s)}."
        )
    whole = next((item for item in profile.overhead if item.metric == E2E), None)
    if whole is not None:
        times = ratio(whole.ratio, whole.ci95).removesuffix(" [n/a]")
        sentences.append(f"Profiled, it is {times} times as slow as without, {quantity(E2E, whole.unprofiled_s)}.")
    sentences += [
        f"{shown(stage.name)} reaches {stage.roofline.fraction:.0%} of this machine's {stage.roofline.limit} limit."
        for stage in profile.stages
        if stage.roofline is not None
    ]
    return Verdict(f"{quantity(E2E, profile.e2e_s)} per iteration", "plain", tuple(sentences))


def _notes(profile: Profile) -> list[Part]:
    notes: list[Part] = [
        Paragraph(f"{shown(stage.name)}: {sentence(note)}") for stage in profile.stages for note in stage.notes
    ]
    return [*notes, Paragraph(f"The trace is in {shown(profile.trace)}; Perfetto (ui.perfetto.dev) opens it.")]
