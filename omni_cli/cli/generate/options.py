"""The options of `omni generate`."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, TypeVar

from omni_cli.cli.options import (
    LoraOption,
    OutputDirOption,
    OverwriteOption,
    ProfileOptions,
    TimeoutOption,
    argument,
    option,
)
from omni_cli.requests.fields import FIELDS

T = TypeVar("T")


def _with_request_fields(options: type[T]) -> type[T]:
    """Add an option for each field of a request that has one, by the field's name."""
    declared: list[tuple[str, Any, Any]] = []
    for row in FIELDS.values():
        if row.option is not None:
            flags, metavar, text = row.option.flags, row.option.metavar or "", row.option.help
            default = False if row.type is bool else None
            info = (
                option(f"{flags} {metavar}", text, default=default) if flags else argument(metavar, text, default=None)
            )
            declared.append((row.name, bool if row.type is bool else row.type | None, info))
    made = make_dataclass(options.__name__, declared, bases=(options,), frozen=True, kw_only=True)
    made.__module__, made.__doc__ = options.__module__, options.__doc__
    return made


@_with_request_fields
@dataclass(frozen=True, kw_only=True)
class GenerateOptions(ProfileOptions):
    """The options of `omni generate`: one request, by the names of its fields in a JSONL file, and those of a run."""

    requests: Path | None = option(
        "--requests FILE.jsonl",
        "Many requests, one JSON object per line, or OpenAI's batch form; a field that a line lacks has the "
        "value of its option.",
    )
    lora: LoraOption = None
    replicas: int | None = option(
        "--replicas N",
        "Run `--requests` on N engines through Ray Data: on the cluster of RAY_ADDRESS, else on this machine. "
        "Finished requests are not run again.",
        min=1,
    )
    help_inputs: bool = option(
        "--help-inputs",
        "List the inputs and outputs of the profile, without loading the model, and exit.",
        default=False,
    )
    output_dir: OutputDirOption = Path("out")
    overwrite: OverwriteOption = False
    timeout: TimeoutOption = None

    def set_fields(self) -> dict[str, Any]:
        """Return the fields that are set."""
        values = {row.name: getattr(self, row.name) for row in FIELDS.values() if row.option is not None}
        return {name: value for name, value in values.items() if not (value is None or value is False or value == [])}
