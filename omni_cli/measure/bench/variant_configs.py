"""The configurations of the variants that a benchmark compares: `--vary KEY=A,B`."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.config.schema import PROFILE_KEYS, EngineConfig
from omni_cli.config.yaml_tree import parse_scalar
from omni_cli.core.errors import UsageError
from omni_cli.core.text import visible
from omni_cli.measure.bench.workload import measured_stages
from omni_cli.records.labels import number_repeated

ENVIRONMENT = "env."
MAX_VARIANTS = 8
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPENING = {"[": "]", "{": "}", '"': '"', "'": "'"}


@dataclass(frozen=True)
class VariantConfig:
    """The configuration of one variant: overrides as in `--set`, environment variables, or another folder of code.

    `settings` describes it in the record.
    """

    name: str
    overrides: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    code: Path | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def varied_keys(self, stage: str) -> frozenset[str]:
        """Return the keys of a stage that this variant sets."""
        keys = (text.partition("=")[0].partition(".") for text in self.overrides)
        return frozenset(key for name, _, key in keys if name == stage)


def parse_vary(
    texts: Sequence[str], config: EngineConfig, stage: str, *, option: str = "--vary", at_most: int = MAX_VARIANTS
) -> tuple[VariantConfig, ...]:
    """Return all combinations of the values, in the given order; empty without `--vary`, or the `option` like it.

    A key without a stage's name applies to the measured stages that have it. Raises `UsageError`.
    """
    axes = [_axis(text, config, stage, option) for text in texts]
    keys = [key for axis in axes for key in axis[0].settings]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"`{option} {key}=...` is given twice", hint=f"write one: `{option} {key}=A,B`")
    count = math.prod(len(axis) for axis in axes)
    if count > at_most:
        raise UsageError(
            f"these are {count} variants, and at most {at_most} can be compared at once",
            hint="vary fewer values at a time",
        )
    if not axes:
        return ()
    variants = list(map(_combine, itertools.product(*axes)))
    # A repeated value is A against A.
    names = number_repeated(variant.name for variant in variants)
    return tuple(dataclasses.replace(variant, name=name) for variant, name in zip(variants, names, strict=True))


def _axis(text: str, config: EngineConfig, stage: str, option: str) -> list[VariantConfig]:
    """Return a variant for each value of a key."""
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key:
        message = f"`{option} {visible(text, 80)}` is not KEY=A,B"
        raise UsageError(
            message, hint=f"for example `{option} thinker.max_num_seqs=1,8` or `{option} env.OMP_NUM_THREADS=1,2`"
        )
    values = split_values(raw)
    if len(values) < 2:
        hint = f"name at least two: `{option} {key}={raw or 'A'},B`; `--set {key}={raw}` sets a single one"
        raise UsageError(
            f"`{option} {visible(text, 80)}` has a single value, so there is nothing to compare", hint=hint
        )
    if key.startswith(ENVIRONMENT):
        name = key.removeprefix(ENVIRONMENT)
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"`{visible(name, 80)}` is not the name of an environment variable")
        return [VariantConfig(f"{key}={value}", (), {name: value}, settings={key: value}) for value in values]
    keys = _full_keys(key, config, stage)
    return [
        VariantConfig(f"{key}={value}", tuple(f"{full}={value}" for full in keys), settings={key: parse_scalar(value)})
        for value in values
    ]


def _full_keys(key: str, config: EngineConfig, stage: str) -> list[str]:
    """Expand `max_num_seqs` to `thinker.max_num_seqs`, ...; keep top-level keys and keys with a stage."""
    first = key.partition(".")[0]
    top_level = PROFILE_KEYS.keys()
    if first in top_level or first in {item.name for item in config.stages}:
        return [key]
    holders = [item.name for item in measured_stages(config, stage) if first in type(item).model_fields]
    if not holders and "." in key:
        return [key]  # the check of the profile reports an unknown stage
    # If no stage has the key, the check of the profile reports it, with a suggestion.
    return [f"{name}.{key}" for name in holders] or [f"{measured_stages(config, stage)[0].name}.{key}"]


def split_values(text: str) -> list[str]:
    """Split at commas outside brackets and quotation marks, and strip each value."""
    values = [""]
    closing: list[str] = []
    for character in text:
        if closing and character == closing[-1]:
            closing.pop()
        elif character in _OPENING and not (closing and closing[-1] in "\"'"):
            closing.append(_OPENING[character])
        if character == "," and not closing:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def _combine(parts: Sequence[VariantConfig]) -> VariantConfig:
    return VariantConfig(
        name=", ".join(part.name for part in parts),
        overrides=tuple(text for part in parts for text in part.overrides),
        environment={name: value for part in parts for name, value in part.environment.items()},
        settings={key: value for part in parts for key, value in part.settings.items()},
    )


def check_distinct(variants: Sequence[VariantConfig], configs: Sequence[EngineConfig]) -> None:
    """Raise `UsageError` if values that are written differently give the same configuration."""
    for (a, config_a), (b, config_b) in itertools.combinations(zip(variants, configs, strict=True), 2):
        is_same = config_a == config_b and a.environment == b.environment and a.code == b.code
        if is_same and a.settings != b.settings:
            raise UsageError(
                f"`{a.name}` and `{b.name}` are the same configuration",
                hint="another option overrides that key: omit it",
            )
