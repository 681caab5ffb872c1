"""Keys of a stage for its LoRA adapters, which requests choose by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from omni_cli.config.key_notes import StrictKeys

# torch's names of modules, which an adapter's is in a pipeline, have no dots.
ADAPTER_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
# The folder of an adapter, and the component of Wan 2.2's pipelines, that is for the steps of less noise.
SECOND_DENOISER = "transformer_2"
_SCALE = re.compile(r"@(\d+(?:\.\d+)?)$")

AdapterName = Annotated[str, StringConstraints(pattern=ADAPTER_NAME_PATTERN)]
AdapterSource = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


@dataclass(frozen=True)
class Adapter:
    """An adapter as a profile names it: `source` is its folder, `DIR` or `DIR@SCALE`."""

    name: str
    source: str

    @property
    def module_name(self) -> str:
        """Its name in PEFT's modules, where `half` and others are names of methods."""
        return f"lora_{self.name}"

    @property
    def path(self) -> Path:
        return Path(_SCALE.sub("", self.source))

    @property
    def scale(self) -> float | None:
        """The factor of its weights; None if it is not set, for 1."""
        found = _SCALE.search(self.source)
        return None if found is None else float(found[1])


class LoraKeys(StrictKeys):
    """The adapters of a stage."""

    lora: dict[AdapterName, AdapterSource] = Field(
        default_factory=dict,
        description="LoRA adapters by name: `{NAME: DIR}`, on diffusers also `DIR@SCALE`. A request names one; without "
        "a name it uses the only one, or the base model if there are several.",
    )

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        return tuple(Adapter(name, source) for name, source in self.lora.items())

    def choose_adapter(self, wanted: str | None) -> str | None:
        """Return the adapter of a request that asks for `wanted` (see `GenerateRequest.lora`); None: the base model."""
        if wanted is None:
            return next(iter(self.lora)) if len(self.lora) == 1 else None
        return wanted if wanted in self.lora else None
