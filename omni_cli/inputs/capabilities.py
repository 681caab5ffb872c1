"""Inputs and outputs of a profile, to reject a pointless option before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.errors import UsageError
from omni_cli.outputs import Modality

_ALWAYS = frozenset({"request_id", "prompt", "seed", "modalities"})
_OF_AR = frozenset({"audio", "image", "sampling", "max_tokens", "temperature", "raw"})
_OF_SPEECH = frozenset({"speaker"})
_OF_DIFFUSION = frozenset({"num_inference_steps", "guidance_scale"})
_OF_IMAGES = frozenset({"negative_prompt", "height", "width"})


@dataclass(frozen=True)
class Capabilities:
    """`modalities` are the profile's outputs in stage order; `fields` the request fields that affect it."""

    profile: str
    modalities: tuple[Modality, ...]
    fields: frozenset[str]

    @classmethod
    def of(cls, config: EngineConfig) -> Capabilities:
        """A first AR stage makes text, a diffusion stage with an input audio, one without an image."""
        modalities: list[Modality] = []
        fields = _ALWAYS
        for index, stage in enumerate(config.stages):
            if isinstance(stage, ARStageConfig):
                if index == 0:
                    modalities.append("text")
                    fields |= _OF_AR
                continue
            fields |= _OF_DIFFUSION
            modalities.append("image" if stage.input is None else "audio")
            fields |= _OF_IMAGES if stage.input is None else _OF_SPEECH
        return cls(config.name, tuple(modalities), fields)

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
