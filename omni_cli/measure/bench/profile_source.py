"""The profile of a benchmark with the command line's overrides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_cli.config.schema import EngineConfig


@dataclass(frozen=True)
class ProfileSource:
    """The profile and the overrides of the command line; each variant loads it with further overrides."""

    profile: str
    overrides: tuple[str, ...]
    model: str | None
    seed: int | None
    trust_remote_code: bool

    def load(self, overrides: tuple[str, ...] = ()) -> EngineConfig:
        """Return the resolved configuration. Raises `InvalidProfileError`."""
        from omni_cli.config.loader import load_profile

        return load_profile(
            self.profile,
            overrides=(*self.overrides, *overrides),
            model=self.model,
            trust_remote_code=self.trust_remote_code,
            seed=self.seed,
        )
