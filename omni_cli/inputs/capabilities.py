"""Inputs and outputs of a profile, to reject a pointless option before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig, EngineConfig
from omni_cli.errors import UsageError
from omni_cli.families import CallInputs, family_of_stages, load
from omni_cli.inputs.fields import CHECKERS
from omni_cli.outputs import GenerateRequest, Modality

_ALWAYS = frozenset({"request_id", "seed", "modalities"})
_OF_CHAINS = frozenset({"prompt"})
_OF_DIFFUSION = frozenset({"num_inference_steps", "guidance_scale"})
_FIELDS: Mapping[Modality, frozenset[str]] = {
    "text": frozenset({"audio", "image", "video", "sampling", "max_tokens", "temperature", "raw"}),
    "audio": frozenset({"speaker"}),
    "image": frozenset({"negative_prompt", "height", "width"}),
    "video": frozenset({"height", "width", "fps"}),
}


@dataclass(frozen=True)
class Capabilities:
    """`modalities` are the profile's outputs in stage order; `fields` the request fields that affect it.

    `call` is what the call of a pipeline takes, if the first stage is one, and `preset` the arguments that the profile
    gives it; `check` is the family's own check of a request.
    """

    profile: str
    modalities: tuple[Modality, ...]
    fields: frozenset[str]
    call: CallInputs | None = None
    preset: frozenset[str] = frozenset()
    check: Callable[[GenerateRequest, EngineConfig], None] | None = None

    @classmethod
    def of(cls, config: EngineConfig) -> Capabilities:
        """Derive them from the roles of its stages; raises `UsageError` if no model family has such stages."""
        family = family_of_stages(config.model, config.stages)
        if family is None:
            names = ", ".join(f"`{stage.name}`" for stage in config.stages)
            raise UsageError(
                f"no installed model family has the stages of profile `{config.name}`: {names}",
                hint="`omni profiles list` shows profiles; docs/adding-a-model.md adds a family",
            )
        roles = [family.role(stage.name) for stage in config.stages]
        kinds = [
            None if role is None else role.made_by(config.model, stage.name)
            for stage, role in zip(config.stages, roles, strict=True)
        ]
        made = tuple(kind for kind in kinds if kind is not None)
        first, role = config.stages[0], roles[0]
        if role is not None and isinstance(role.takes, str) and isinstance(first, DiffusionStageConfig):
            call: CallInputs = load(role.takes)(config.model)
            given = [name for name in PIPELINE_ARGUMENTS if getattr(first, name) is not None]
            return cls(config.name, made, _ALWAYS | call.fields, call, frozenset({*given, *first.call}))
        fields = _ALWAYS | _OF_CHAINS
        for stage, role, kind in zip(config.stages, roles, kinds, strict=True):
            assert role is not None  # or the family would not fit
            fields |= _OF_DIFFUSION if stage.kind == "diffusion" else frozenset()
            fields |= set(role.takes) | (_FIELDS[kind] if kind is not None else frozenset())
        return cls(config.name, made, fields, check=None if family.check is None else load(family.check))

    def makes_files(self, modalities: frozenset[Modality] | None) -> bool:
        """Tell whether a request for these modalities (None: all) writes to the output folder."""
        wanted = set(self.modalities) if modalities is None else modalities
        return bool(wanted - {"text"})

    def check_field(self, field: str, label: str) -> None:
        """Raise `UsageError` if `field` has no effect here; `label` is the user's name for it."""
        if field not in self.fields:
            other = "choose another profile with `--profile`; `omni profiles list` shows them"
            inputs = "`omni generate --help-inputs` with this profile lists what it takes"
            raise UsageError(
                f"{label} has no effect with profile `{self.profile}`, which makes {self._made()}",
                hint=f"{inputs}, or {other}" if self.call is not None and field in CHECKERS else other,
            )

    @property
    def needs_prompt(self) -> bool:
        """Tell whether a request must have a prompt."""
        return self.call is None or "prompt" in (argument.name for argument in self.call.missing((), self.preset))

    @property
    def needed_files(self) -> tuple[str, ...]:
        """Fields for the files without which the pipeline cannot run."""
        arguments = () if self.call is None else self.call.arguments
        fields = (each.field for each in arguments if each.is_needed and each.file_kind is not None)
        return tuple(field for field in fields if field != "arg")

    def check_needed(self, given: Mapping[str, Any], label: Callable[[str], str]) -> None:
        """Raise `UsageError` if a request lacks something; `label` maps a field to the user's name for it."""
        if self.call is None:
            return
        missing = self.call.missing(given, {*self.preset, *given.get("arg", ())})
        if missing:
            (field, name), others = (missing[0].field, missing[0].name), missing[1:]
            what = f"the argument `{name}`" if field == "arg" else label(field)
            instead = "".join(f" or `{argument.name}`" for argument in others)
            setting = f"{label('arg').strip('`')} {name}=VALUE"
            raise UsageError(
                f"{what}{instead} is missing, which profile `{self.profile}` needs",
                hint=f"it takes {missing[0].type}: `{setting}`" if field == "arg" else None,
            )

    def check_request(self, request: GenerateRequest, config: EngineConfig) -> str | None:
        """Raise `InputError` for a request whose values or files the pipeline would reject; returns a warning."""
        if self.check is not None:
            self.check(request, config)
        return None if self.call is None else self.call.check_request(request, config.stages[0])

    def check_modalities(self, modalities: frozenset[str], label: str) -> None:
        """Raise `UsageError` for a modality that no stage of the profile makes."""
        for modality in sorted(modalities):
            if modality not in self.modalities:
                raise UsageError(
                    f"{label}: profile `{self.profile}` makes {self._made()}, not `{modality}`",
                    hint=f"choose from: {', '.join(self.modalities)}",
                )

    def _made(self) -> str:
        return " and ".join(self.modalities) if self.modalities else "nothing"
