"""`omni generate --help-inputs`: inputs and outputs of a profile, found without loading it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from omni_cli.cli.terminal import console
from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig, EngineConfig
from omni_cli.report.tables import align
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.fields import FIELDS
from omni_cli.requests.pipeline_call import SOUND_FIELDS
from omni_cli.requests.value_types import FileKind, describe_types

SCHEMA = "omni.inputs/1"


@dataclass(frozen=True)
class InputRow:
    """One input: the option that sets it, its name in the model's call or in a request line, its type and default.

    `default` is the profile's, else the call's as source text; None if there is none.
    """

    option: str
    name: str
    type: str
    default: str | None
    required: bool


def show_inputs(config: EngineConfig, capabilities: Capabilities, *, as_json: bool) -> None:
    """Print the inputs and outputs of a profile, as a table or as one JSON document."""
    call = capabilities.call
    known = call is not None and call.pipeline is not None
    rows = _call_rows(config, capabilities) if known else _field_rows(capabilities)
    pipeline = None if call is None else call.pipeline
    if as_json:
        document = {"schema": SCHEMA, "profile": config.name, "model": config.model, "pipeline": pipeline}
        console.print_json({**document, "makes": capabilities.modalities, "inputs": [asdict(row) for row in rows]})
        return
    outputs = " and ".join(capabilities.modalities)
    if call is not None and outputs == "video" and set(SOUND_FIELDS) & set(call.outputs):
        outputs = "video with sound"
    title = f"{config.name} ({pipeline or config.model}) makes {outputs}"
    header = ("option", "name", "type", "default")
    cells = [(row.option, row.name, row.type, "required" if row.required else row.default or "") for row in rows]
    console.print_text("\n".join([title, "", *align([header, *cells])]))


def _call_rows(config: EngineConfig, capabilities: Capabilities) -> list[InputRow]:
    """Return the arguments of a pipeline's call, those with a separate option first."""
    call = capabilities.call
    assert call is not None
    stage = config.stages[0]
    assert isinstance(stage, DiffusionStageConfig)
    preset = {**stage.call, **{name: getattr(stage, name) for name in PIPELINE_ARGUMENTS}}
    options = _options()
    rows = []
    for name in sorted(filter(call.is_listed, call.arguments), key=lambda name: call.get_field(name) == "arg"):
        argument, field, own = call.arguments[name], call.get_field(name), preset.get(name)
        default = None if argument.is_required else repr(argument.default)
        option = _arg_option(name, argument.file_kind) if field == "arg" else options[field][0]
        rows.append(
            InputRow(
                option,
                name,
                describe_types(argument.types),
                default if own is None else json.dumps(own),
                argument.is_required and own is None,
            )
        )
    shown = {row.option for row in rows}
    # A video has a rate and a length, whatever its call takes.
    for field in ("duration", "fps"):
        option, kind = options[field]
        if field in capabilities.fields and option not in shown:
            rows.append(InputRow(option, field, kind, None, False))
    seed = InputRow("--seed N", "seed", "int", str(config.seed), False)
    return [*rows, seed]


def _arg_option(name: str, kind: FileKind | None) -> str:
    value = {"image": "@FILE", "media": "@FILE", "tensor": "@FILE.npy"}.get(kind or "", "VALUE")
    return f"--arg {name}={value}"


def _field_rows(capabilities: Capabilities) -> list[InputRow]:
    """Return the request fields that have an effect."""
    options = {name: describe_types for name, describe_types in _options().items() if name in capabilities.fields}
    return [
        InputRow(option, name, kind, None, name == "prompt" and capabilities.needs_prompt)
        for name, (option, kind) in options.items()
    ]


def _options() -> dict[str, tuple[str, str]]:
    """Return the options of a request by field: their form in the help, and their types."""
    options = {}
    for name, row in FIELDS.items():
        if row.option is not None:
            flag, _, _ = row.option.flags.partition(" ")
            kind = row.type.__name__ if row.type in (str, int, float, bool) else str(row.type)
            options[name] = (" ".join(filter(None, (flag, row.option.metavar))), kind)
    return options
