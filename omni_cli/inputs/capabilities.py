"""Inputs and outputs of a profile, to reject a pointless option before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from omni_cli.config.schema import EngineConfig
from omni_cli.errors import UsageError
from omni_cli.families import family_of_stages, load
from omni_cli.outputs import Modality

_ALWAYS = frozenset({"request_id", "prompt", "seed", "modalities"})
_OF_DIFFUSION = frozenset({"num_inference_steps", "guidance_scale"})
_FIELDS: Mapping[Modality, frozenset[str]] = {
    "text": frozenset({"audio", "image", "video", "sampling", "max_tokens", "temperature", "raw"}),
    "audio": frozenset({"speaker"}),
    "image": frozenset({"negative_prompt", "height", "width"}),
}


@dataclass(frozen=True)
class Capabilities:
    """`modalities` are the profile's outputs in stage order; `fields` the request fields that affect it, `needed` those
    that it cannot do without.
    """

    profile: str
    modalities: tuple[Modality, ...]
    fields: frozenset[str]
    needed: tuple[str, ...] = ()

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
        modalities: list[Modality] = []
        fields = _ALWAYS
        needed: list[str] = []
        for stage in config.stages:
            role = family.role(stage.name)
            assert role is not None  # or the family would not fit
            if stage.kind == "diffusion":
                fields |= _OF_DIFFUSION
            fields |= set(load(role.takes)(config.model) if isinstance(role.takes, str) else role.takes)
            if role.needs is not None:
                needed += load(role.needs)(config.model)
            if role.makes is not None:
                modalities.append(role.makes)
                fields |= _FIELDS[role.makes]
        return cls(config.name, tuple(modalities), fields, tuple(needed))

    def makes_files(self, modalities: frozenset[Modality] | None) -> bool:
        """Tell whether a request for these modalities (None: all) writes to the output folder."""
        wanted = set(self.modalities) if modalities is None else modalities
        return bool(wanted - {"text"})

    def check_field(self, field: str, label: str) -> None:
        """Raise `UsageError` if `field` has no effect here; `label` is the user's name for it."""
        if field not in self.fields:
            raise UsageError(
                f"{label} has no effect with profile `{self.profile}`, which makes {self._made()}",
                hint="choose another profile with `--profile`; `omni profiles list` shows them",
            )

    def check_needed(self, given: Collection[str], label: Callable[[str], str]) -> None:
        """Raise `UsageError` if a request lacks a field; `label` maps it to the user's name for it."""
        for field in self.needed:
            if field not in given:
                raise UsageError(f"{label(field)} is missing, which profile `{self.profile}` needs")

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
