"""The settings of `omni tune`: `--search KEY=A,B` or `KEY=1..16`, or a space that suits the measured stages."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omni_cli.bench.local import check_variant_config, load_variant_config
from omni_cli.bench.profile_source import ProfileSource
from omni_cli.bench.variant_configs import VariantConfig, parse_vary
from omni_cli.bench.workload import Workload
from omni_cli.config.diagnostics import InvalidProfileError
from omni_cli.config.schema import EngineConfig
from omni_cli.errors import OmniError, UsageError
from omni_cli.stats.race import Race
from omni_cli.text import visible

OPTION = "--search"
MAX_SETTINGS = 64
MAX_TOGETHER = 8
"""Settings that run side by side; more would disturb each other, and the result would be about their crowd."""

AS_IT_IS = "profile as it is"
_WHOLE = 8
_STEPS = 5
_RANGE = re.compile(r"([^=]+)=\s*(-?[0-9.]+?)\s*\.\.\s*(-?[0-9.]+)\s*")


@dataclass(frozen=True)
class Space:
    """The settings, the profile as it is first, and the reasons why some of them cannot be tried."""

    variants: tuple[VariantConfig, ...]
    refused: dict[str, str]


def plan_space(
    searches: Sequence[str], config: EngineConfig, workload: Workload, source: ProfileSource, cores: int
) -> Space:
    """Return the settings to try. Raises `OmniError` for a key or a value that no setting may have."""
    texts = [expanded(text) for text in searches] or default_space(config, workload, cores)
    variants = list(parse_vary(texts, config, workload.stage, option=OPTION, at_most=MAX_SETTINGS))
    for text in texts:
        # One key at a time, so that an invalid value is an error, and an impossible combination only a refusal.
        for variant in parse_vary([text], config, workload.stage, option=OPTION, at_most=MAX_SETTINGS):
            load_variant_config(source, variant, OPTION)
    kept: list[VariantConfig] = []
    refused: dict[str, str] = {}
    seen: list[tuple[EngineConfig, dict[str, str]]] = [(config, {})]
    first = VariantConfig(AS_IT_IS)
    for variant in variants:
        try:
            varied = load_variant_config(source, variant, OPTION)
            check_variant_config(variant, varied)
        except OmniError as error:
            kept.append(variant)
            refused[variant.name] = _reason(error)
            continue
        same = (varied, dict(variant.environment))
        if same == seen[0] and first.name == AS_IT_IS:
            # The profile has this setting already, so the profile is listed under the setting's name.
            first = variant
        elif same not in seen:
            seen.append(same)
            kept.append(variant)
    return Space((first, *kept), refused)


def _reason(error: OmniError) -> str:
    if isinstance(error, InvalidProfileError):
        return "; ".join(dict.fromkeys(item.message for item in error.diagnostics))
    return error.message


def expanded(text: str) -> str:
    """Expand `KEY=1..16`: up to eight whole numbers are all tried, more are doubled from the first, and fractions are
    five evenly spaced values. Returns any other text unchanged. Raises `UsageError`."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return text
    try:
        whole = match[2].lstrip("-").isdigit() and match[3].lstrip("-").isdigit()
        low, high = (int(part) if whole else float(part) for part in match.groups()[1:])
    except ValueError:
        return text
    if not low < high:
        raise UsageError(f"`{OPTION} {visible(text, 80)}` is not a range: write the smaller number first")
    return f"{match[1]}={','.join(f'{value:g}' for value in _values(low, high, whole=whole))}"


def _values(low: float, high: float, *, whole: bool) -> list[float]:
    if whole and high - low < _WHOLE:
        return [low + step for step in range(int(high - low) + 1)]
    if not whole or low < 1:
        return [low + (high - low) * step / (_STEPS - 1) for step in range(_STEPS)]
    values = [low]
    while values[-1] * 2 < high:
        values.append(values[-1] * 2)
    return [*values, high]


def default_space(config: EngineConfig, workload: Workload, cores: int) -> list[str]:
    """Return the keys that change the speed of these stages on this machine and leave their outputs as they are."""
    from omni_cli.engine.devices import has_cuda_device

    kinds = {stage.kind for stage in workload.measured(config)}
    cuda = has_cuda_device()
    space = []
    if "diffusion" in kinds:
        space.append("execution=eager,compile" + (",cudagraph" if cuda else ""))
    if "ar" in kinds and cuda:
        space.append("cudagraph_mode=none,piecewise,full_and_piecewise")
    if workload.batch_size > 1:
        space.append(expanded(f"max_num_seqs=1..{workload.batch_size}"))
    if not cuda and cores > 1:
        space.append(expanded(f"env.OMP_NUM_THREADS=1..{cores}"))
    if not space:
        raise UsageError("there is no default space for this stage", hint=f"name one: `{OPTION} KEY=A,B`")
    return space


def get_groups(race: Race, shuffled: random.Random) -> Iterator[list[str]]:
    """Yield the rivals of the leader in groups that run side by side with it, of about equal size, in random order."""
    pending = list(race.rivals)
    shuffled.shuffle(pending)
    count = max(1, -(-len(pending) // (MAX_TOGETHER - 1)))
    for number in range(count):
        yield pending[number::count]
