"""Options of the commands, each declared once.

A command takes a frozen dataclass; each field is declared as an option or argument. `lazy` makes
Typer's parameters of them. Options that several commands have are fields of a base class, or types for a field.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import OptionInfo

from omni_cli.cli.lazy import DECLARATION
from omni_cli.cli.terminal import console
from omni_cli.config.bounds import NUM_RANDOM_SEEDS
from omni_cli.config.bundled import bundled_profiles
from omni_cli.core.errors import OmniError, OutputError, UsageError
from omni_cli.core.files import reason_of, write_whole

if TYPE_CHECKING:
    from msgspec import Struct

    from omni_cli.config.gate_limits import GateLimits, QualityLimit
    from omni_cli.records.record import Record
    from omni_cli.report.view import View

DEFAULT_PROFILE = "tiny-omni"


def shared_option(usage: str, help_text: str, **rules: Any) -> OptionInfo:
    """Declare an option that several commands have, for a type; `usage` is `--name -n VALUE`."""
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    declared: OptionInfo = typer.Option(*flags, metavar=" ".join(words[len(flags) :]) or None, help=help_text, **rules)
    return declared


def option(usage: str, help_text: str, *, default: object = None, **rules: Any) -> Any:
    """Declare a field of a command's options, as `shared_option` does a type."""
    return field(default=default, metadata={DECLARATION: shared_option(usage, help_text, **rules)})


def argument(metavar: str, help_text: str, *, default: object = MISSING) -> Any:
    return field(default=default, metadata={DECLARATION: typer.Argument(metavar=metavar, help=help_text)})


def positive_seconds(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter("expected a number of seconds greater than 0")
    return value


def seconds_option(usage: str, help_text: str, *, default: float | None = None) -> Any:
    """Declare a field of a number of seconds greater than 0."""
    return option(usage, help_text, default=default, callback=positive_seconds)


def _profile_names(begun: str) -> list[str]:
    """Return the bundled profiles that complete a word in a shell."""
    return [name for name in bundled_profiles() if name.startswith(begun)]


ProfileOption = Annotated[
    str | None,
    shared_option(
        "--profile -p NAME|PATH",
        f"A bundled profile by name, or a YAML file. Default: derived from `--model`, else {DEFAULT_PROFILE}.",
        autocompletion=_profile_names,
    ),
]
ModelOption = Annotated[
    str | None,
    shared_option(
        "--model DIR|REPO",
        "Checkpoint: a folder or a Hugging Face repo id. With `--profile`, it replaces the profile's model.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    shared_option("--set [STAGE.]KEY=VALUE", "Set a key of the profile; `null` removes the key. Repeatable."),
]


LoraOption = Annotated[
    list[str] | None,
    shared_option(
        "--lora NAME=DIR",
        "LoRA adapter of the first stage; for pipelines of diffusers also `NAME=DIR@SCALE`. Requests use the only one; "
        "of several, a request line names one by `lora`. In a server, `model` names one. Repeatable.",
    ),
]


def parse_seed(text: str) -> int:
    """Parse a seed; `random` draws one."""
    if text == "random":
        import secrets

        return secrets.randbelow(NUM_RANDOM_SEEDS)
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter("expected a whole number or `random`") from error


SeedOption = Annotated[
    int | None,
    shared_option("--seed N|random", "Seed. Default: the profile's, else 0; `random` draws one.", parser=parse_seed),
]
JsonOption = Annotated[bool, shared_option("--json", "Print exactly one JSON document on stdout, and nothing else.")]
OutputDirOption = Annotated[Path, shared_option("--output-dir -o DIR", "Folder for output files.")]
WaitOption = Annotated[
    float | None,
    shared_option(
        "--wait SECONDS", "Wait up to this many seconds for a server that starts.", callback=positive_seconds
    ),
]
OverwriteOption = Annotated[
    bool, shared_option("--overwrite", "Replace the files of an earlier run. Default: new ones get other names.")
]
TimeoutOption = Annotated[
    float | None,
    shared_option("--timeout SECONDS", "Stop with an error after this many seconds.", callback=positive_seconds),
]
VerboseOption = Annotated[bool, shared_option("--verbose -v", "Show the libraries' logs and tracebacks of errors.")]
QuietOption = Annotated[bool, shared_option("--quiet -q", "Show only results, warnings and errors.")]
TrustRemoteCodeOption = Annotated[
    bool, shared_option("--trust-remote-code", "Allow Python code from the checkpoint to run. Off by default.")
]


@dataclass(frozen=True, kw_only=True)
class DisplayOptions:
    """Options of every command that shows results."""

    as_json: JsonOption = False
    verbose: VerboseOption = False
    quiet: QuietOption = False


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(DisplayOptions):
    """Options of every command that loads a profile."""

    profile: ProfileOption = None
    model: ModelOption = None
    set_: SetOption = None
    seed: SeedOption = None
    trust_remote_code: TrustRemoteCodeOption = False


DEFAULT_MARGIN = "2%"
_WEIGHTS = re.compile(r"[a-z_]+=")

MaxMemoryRegressionOption = Annotated[
    str | None, shared_option("--max-memory-regression PERCENT", "Gate: the allowed increase in memory.")
]
MarginOption = Annotated[str, shared_option("--margin PERCENT", "Differences below this count as no difference.")]
AllowDifferenceOption = Annotated[
    list[str] | None, shared_option("--allow-difference FIELD", "Compare even if this field differs. Repeatable.")
]


@dataclass(frozen=True, kw_only=True)
class GateOptions(DisplayOptions):
    """Limits to judge by, and the reports of it."""

    takes_weights = False

    max_regression: str | None = option("--max-regression PERCENT", "Gate: the allowed slowdown, such as 5%.")
    metric: list[str] | None = option(
        "--metric NAME", "Compare only this metric and apply `--max-regression` to it. Repeatable."
    )
    gate: Path | None = option("--gate FILE.yaml", "Gate: limits from a file, see benchmarks/gates.")
    require_identical_outputs: bool = option(
        "--require-identical-outputs", "Gate: all variants must produce the same outputs.", default=False
    )
    quality: list[str] | None = option(
        "--quality METRIC>=LIMIT",
        "Gate: how far outputs may differ, such as psnr_db>=40, ssim>=0.98, snr_db>=30, exact_match>=1 or "
        "log_mel_distance_db<=1. Repeatable. For `omni bench` also the weights of a model that measures outputs: "
        "lpips=FOLDER, clip_score=FOLDER or wer=FOLDER; for `omni loadtest` wer=FOLDER, which hears answers.",
    )
    markdown: Path | None = option("--markdown FILE", "Also write the report as Markdown.")
    junit: Path | None = option("--junit FILE", "Also write the gate as JUnit XML.")

    def limits(self, max_memory_regression: str | None = None) -> GateLimits | None:
        """Build the gate; None if there is none. Raises `OmniError`."""
        from omni_cli.config.gate_limits import merge_limits

        time = None if self.max_regression is None else read_fraction("--max-regression", self.max_regression)
        if time == 0:
            message = "invalid value for `--max-regression`: a limit of 0 cannot be judged"
            raise UsageError(message, hint="leave room for noise: use 2%, for example")
        memory = None
        if max_memory_regression is not None:
            memory = read_fraction("--max-memory-regression", max_memory_regression)
        limits = None
        if self.gate is not None:
            from omni_cli.config.gate_limits import load_gate_file

            limits = load_gate_file(self.gate)
        limits = merge_limits(
            limits,
            max_regression=time,
            max_memory_regression=memory,
            metrics=tuple(self.metric or ()),
            identical_outputs=self.require_identical_outputs,
            quality=tuple(read_quality(text) for text in self.quality or () if text not in self.weights),
        )
        check_model_based(() if limits is None else limits.quality, [text.partition("=")[0] for text in self.weights])
        return limits

    @property
    def weights(self) -> list[str]:
        """Values of `--quality` that name the weights of a model, such as `lpips=FOLDER`."""
        return [text for text in self.quality or () if self.takes_weights and _WEIGHTS.match(text)]


def read_quality(text: str) -> QualityLimit:
    """Parse `psnr_db>=40`. Raises `UsageError`."""
    from omni_cli.config.gate_limits import parse_quality
    from omni_cli.records.results import MEASURES

    try:
        return parse_quality(text, MEASURES)
    except ValueError as error:
        raise UsageError(f"invalid value for `--quality`: {error}") from error


def check_model_based(limits: Iterable[QualityLimit], names: Collection[str]) -> None:
    """Raise `UsageError` for a limit on a measure of a model without its weights."""
    from omni_cli.records.results import MODEL_BASED_MEASURES

    for limit in limits:
        if limit.metric in MODEL_BASED_MEASURES and limit.metric not in names:
            raise UsageError(
                f"`{limit.metric}` needs a model, and no weights of one are given",
                hint=f"name them: `omni bench --vary KEY=A,B --quality {limit.metric}=FOLDER --quality '{limit}'`",
            )


def read_fraction(option_name: str, text: str) -> float:
    """Parse `5%` as 0.05. Raises `UsageError`."""
    from omni_cli.config.gate_limits import parse_fraction

    try:
        return parse_fraction(text)
    except ValueError as error:
        raise UsageError(f"invalid value for `{option_name}`: {error}") from error


def reach(addresses: Iterable[str], options: Any) -> list[str]:
    """Return the addresses of servers, once they are ready if `--wait` is given. Raises `OmniError`."""
    from omni_cli.openai_api.client import parse_url, wait_for_servers

    urls = [parse_url(text) for text in addresses]
    if options.wait is not None:
        if not options.quiet:
            console.print_note(f"waiting up to {options.wait:g} s for {', '.join(dict.fromkeys(urls))}")
        wait_for_servers(urls, getattr(options, "api_key", None) or os.environ.get("OPENAI_API_KEY"), options.wait)
    return urls


def refuse_failed(record: Record, path: Path) -> None:
    """Raise `OmniError` if a variant of a saved record failed: nothing is measured by it."""
    from omni_cli.stats.verdicts import failed_variants

    for text in failed_variants(record.variants, f" of `{path}`"):
        raise OmniError(text, hint="find out why, and measure it again")


def check_output_files(*paths: Path | None) -> None:
    """Raise `OutputError` before anything runs if a file could not be written."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise OutputError(f"cannot write `{path}`: it is a folder", hint="name a file in it")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise OutputError(f"cannot write `{path}`: no folder `{path.parent}` that may be written to")


def write_report(path: Path, text: str) -> None:
    """Write a report whole or not at all. Raises `OutputError`."""
    try:
        write_whole(path, text.encode("utf-8", errors="replace"))
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write `{path}`: {reason_of(error)}") from error


def show_view(view: View, record: Struct, *, as_json: bool) -> None:
    """Print a record as the document, or its view as text; and the notes and the failure of the view."""
    import msgspec

    from omni_cli.report.renderers import to_text

    if as_json:
        console.print_json(msgspec.to_builtins(record))
    else:
        console.print_text(to_text(view))
    show_notes(view)
    if view.failure is not None:
        console.print_error(OmniError(view.failure.message, hint=view.failure.hint))


def show_notes(view: View) -> None:
    for note in view.notes:
        console.print_warning(note.message, hint=note.hint, label=note.label.lower())


def write_view(view: View, suite: str, markdown: Path | None, junit: Path | None = None) -> None:
    """Write a view to the files of `--markdown` and `--junit`, there as a suite of this name. Raises `OutputError`."""
    from omni_cli.report.renderers import to_junit, to_markdown

    if markdown is not None:
        write_report(markdown, to_markdown(view))
    if junit is not None:
        write_report(junit, to_junit(view, suite))
