"""Inputs and outputs of a profile, to reject a pointless option before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from omni_cli.config.families import Cloning, get_family_of_stages, load
from omni_cli.config.loader import load_bundled
from omni_cli.config.schema import PIPELINE_ARGUMENTS, DiffusionStageConfig, EngineConfig
from omni_cli.core.errors import UsageError
from omni_cli.requests.fields import FIELDS, Taker
from omni_cli.requests.outputs import GenerateRequest, Modality
from omni_cli.requests.pipeline_call import Kind, PipelineCall
from omni_cli.requests.value_types import describe_types
from omni_cli.requests.voices import check_voices


def _fields_of(*takers: Taker | Literal["tensor"] | None) -> frozenset[str]:
    return frozenset(name for name, row in FIELDS.items() if {*takers} & {*row.takers})


@dataclass(frozen=True)
class Capabilities:
    """`modalities` are the profile's outputs in stage order; `fields` the request fields that affect it.

    `call` is that of a pipeline, if the first stage is one, and `preset` the arguments that the profile gives it;
    `check` is the family's own check of a request. If it `transcribes`, a request is a sound and needs no prompt; if it
    `hears`, one may be. `cloning` is None for a profile that clones no voices.
    """

    config: EngineConfig
    modalities: tuple[Modality, ...]
    fields: frozenset[str]
    call: PipelineCall | None = None
    preset: frozenset[str] = frozenset()
    check: Callable[[GenerateRequest, EngineConfig], None] | None = None
    transcribes: bool = False
    hears: bool = False
    cloning: Cloning | None = None

    @classmethod
    def of(cls, config: EngineConfig, call: PipelineCall | None = None) -> Capabilities:
        """Derive them from the roles of a profile's stages; raises `UsageError` if no model family has such stages.

        `call` is that of the first stage's pipeline. Without it, a pipeline makes what its stage is named after.
        """
        family = get_family_of_stages(config.model, config.stages)
        if family is None:
            names = ", ".join(f"`{stage.name}`" for stage in config.stages)
            raise UsageError(
                f"no installed model family has the stages of profile `{config.name}`: {names}",
                hint="`omni profiles list` shows profiles; docs/adding-a-model.md adds a family",
            )
        roles = [family.role(stage.name) for stage in config.stages]
        first, role = config.stages[0], roles[0]
        if role is not None and isinstance(role.takes, str) and isinstance(first, DiffusionStageConfig):
            call = call or PipelineCall(None)
            named: Kind = next((kind for kind in get_args(Kind) if kind == first.name), "image")
            standard = [name for name in PIPELINE_ARGUMENTS if getattr(first, name) is not None]
            preset = frozenset({*standard, *first.call})
            return cls(config, (call.makes or named,), _fields_of("any") | call.fields, call, preset)
        modalities: list[Modality] = []
        fields = _fields_of("any", "chain")
        for stage, role in zip(config.stages, roles, strict=True):
            assert role is not None  # or the family would not fit
            modalities += [] if role.makes is None else [role.makes]
            denoises: Taker | None = "diffusion" if stage.kind == "diffusion" else None
            makes = None if role.transcribes and not role.chats else role.makes
            fields |= set(role.takes) | _fields_of(makes, denoises, "transcription" if role.transcribes else None)
        check = None if family.check is None else load(family.check)
        hearing = [role for role in roles if role is not None and role.transcribes]
        transcribes, hears = any(not role.chats for role in hearing), bool(hearing)
        cloning = next((role.clones for role in roles if role is not None and role.clones is not None), None)
        if cloning is not None and cloning.text != "unused":
            fields |= {"ref_text"}
        heard = (transcribes, hears)
        return cls(config, tuple(modalities), fields, None, frozenset(), check, *heard, cloning)

    @property
    def profile(self) -> str:
        return self.config.name

    def makes_files(self, modalities: frozenset[Modality] | None) -> bool:
        """Return True if a request for these modalities (None: all) writes to the output folder."""
        wanted = set(self.modalities) if modalities is None else modalities
        return bool(wanted - {"text"})

    def takes(self, field: str) -> bool:
        """Return True if a field affects the output, also as an argument that has no option."""
        call = self.call
        is_argument = call is not None and (call.pipeline is None or call.argument_for(field) is not None)
        return field in self.fields or is_argument

    def check_field(self, field: str, label: str) -> None:
        """Raise `UsageError` if `field` has no effect here; `label` is the user's name for it."""
        if field not in self.fields:
            other = "choose another profile with `--profile`; `omni profiles list` shows them"
            inputs = "`omni generate --help-inputs` with this profile lists what it takes"
            raise UsageError(
                f"{label} has no effect with profile `{self.profile}`, which makes {self._list_modalities()}",
                hint=f"{inputs}, or {other}" if self.call is not None and field in FIELDS else other,
            )

    @property
    def needs_prompt(self) -> bool:
        """Return True if a request must have a prompt, whatever else it has."""
        return "prompt" in self._get_missing({}) if self.call is not None else not self.transcribes

    def lacks_prompt(self, fields: Mapping[str, Any]) -> bool:
        """Return True if a request with these fields, and without a prompt, must have one."""
        return self.needs_prompt and not (self.hears and fields.get("audio"))

    def takes_prompt(self, fields: Mapping[str, Any]) -> bool:
        """Return True if a prompt would be part of a request with these fields, whose `arg` may have one in tensors."""
        arguments = fields.get("arg", ())
        return "prompt" in self.fields and not any("prompt_embeds" in str(argument) for argument in arguments)

    @property
    def needed_files(self) -> tuple[str, ...]:
        """Fields for the files that a request must have."""
        if self.transcribes:
            return ("audio",)
        call = self.call
        fields = () if call is None else (call.get_field(name) for name in self._get_missing({}))
        return tuple(name for name in fields if name in FIELDS and FIELDS[name].part == "media")

    def check_together(self, fields: Mapping[str, Any], label: Callable[[str], str]) -> None:
        """Raise an error if fields of a request set an argument twice, or lack one that the pipeline's call requires.

        `label` maps a field to the user's name for it.
        """
        if self.transcribes and not fields.get("audio"):
            raise UsageError(f"{label('audio')} is missing, which profile `{self.profile}` needs")
        if self.hears and fields.get("language") and not fields.get("audio"):
            raise UsageError(f"{label('audio')} is missing, whose {label('language')} is given")
        num_voices = sum(isinstance(voice, Path) for voice in fields.get("voice", ()))
        self.check_cloned(num_voices, len(fields.get("ref_text", ())), label)
        if self.call is None:
            return
        self.call.check_set_once(fields)
        for name in self._get_missing(fields):
            field = self.call.get_field(name)
            what = f"the argument `{name}`" if field == "arg" else label(field)
            setting = f"{label('arg').strip('`')} {name}=VALUE"
            raise UsageError(
                f"{what} is missing, which profile `{self.profile}` needs",
                hint=f"it takes {describe_types(self.call.arguments[name].types)}: `{setting}`"
                if field == "arg"
                else None,
            )

    def check_cloned(self, num_voices: int, num_texts: int, label: Callable[[str], str]) -> None:
        """Raise `UsageError` for numbers of recordings of voices, and of their texts, that the profile does not take.

        `label` maps the fields `voice` and `ref_text` to the user's names for them.
        """
        voice, text = label("voice"), label("ref_text")
        if num_texts and not num_voices:
            raise UsageError(f"{text} is the text of a recording, which is missing", hint=f"give it: {voice}")
        if not num_voices:
            return
        if self.cloning is None:
            raise UsageError(
                f"{voice}: profile `{self.profile}` does not clone voices",
                hint=f"name one of its speakers, or choose a profile that does: {', '.join(cloning_profiles())}",
            )
        if num_texts and self.cloning.text == "unused":
            raise UsageError(
                f"{text} has no effect with profile `{self.profile}`: it clones a voice from its sound alone"
            )
        if not num_texts and self.cloning.text == "needed":
            raise UsageError(
                f"{text} is missing, which profile `{self.profile}` needs", hint=f"give the words of {voice}"
            )
        if num_texts not in (0, num_voices):
            what = f"{num_voices} recording{'s' if num_voices > 1 else ''} of voices"
            raise UsageError(
                f"{text} is given {num_texts} times for {what}", hint="give one for each, in the same order"
            )

    def _get_missing(self, fields: Mapping[str, Any]) -> list[str]:
        return [] if self.call is None else [name for name in self.call.list_missing(fields) if name not in self.preset]

    def check_request(self, request: GenerateRequest, config: EngineConfig) -> None:
        """Raise `InputError` for a request whose values or files the model family rejects."""
        check_voices(request.speech.voices, self.cloning)
        if self.check is not None:
            self.check(request, config)

    def check_modalities(self, modalities: frozenset[str], label: str) -> None:
        """Raise `UsageError` for a modality that no stage of the profile makes."""
        for modality in sorted(modalities):
            if modality not in self.modalities:
                raise UsageError(
                    f"{label}: profile `{self.profile}` makes {self._list_modalities()}, not `{modality}`",
                    hint=f"choose from: {', '.join(self.modalities)}",
                )

    def _list_modalities(self) -> str:
        return " and ".join(self.modalities) if self.modalities else "nothing"


def cloning_profiles() -> list[str]:
    """Return the names of the bundled profiles that clone voices, whatever their checkpoint."""
    cloning = {name: Capabilities.of(config).cloning for name, config in load_bundled().items()}
    return [name for name, how in cloning.items() if how is not None and how.by_all]
