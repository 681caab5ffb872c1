"""Time per operator, and time spent on copies."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from omni_cli.profile_record import Copies, CopyPlace, OperatorTime
from omni_cli.profiling.operators import Operators
from omni_cli.profiling.ranges import base_name
from omni_cli.stage.recording import module_kind

_COPY = "aten::copy_"
_OUTSIDE = "(outside modules)"
_OUTSIDE_RANGES = "(outside ranges)"
_MAX_OPERATORS = 40
_MAX_PLACES = 20

# Per iteration, by the columns that identify a row: calls, bytes, seconds.
_Rows = dict[tuple[str, ...], list[float]]


def operator_times(traced: Sequence[Operators]) -> tuple[OperatorTime, ...]:
    """Operators with the most self time, by kind of module; `fraction` is of the time of all operators."""
    rows = _medians([_by_module(operators) for operators in traced])
    everything = sum(seconds for _, _, seconds in rows.values())
    largest = sorted(rows.items(), key=lambda row: -row[1][2])[:_MAX_OPERATORS]
    return tuple(
        OperatorTime(
            module=module, operator=name, calls=calls, seconds=seconds,
            fraction=seconds / everything if everything else 0.0,
        )
        for (module, name), (calls, _, seconds) in largest
    )  # fmt: skip


def get_copies(traced: Sequence[Operators], counters: Sequence[Mapping[str, float]]) -> Copies:
    """Places where copies are made; `counters` are those of each profiled iteration."""
    rows = _medians([_copies(operators) for operators in traced])
    largest = sorted(rows.items(), key=lambda row: (-row[1][1], -row[1][2]))[:_MAX_PLACES]
    return Copies(
        output_copies=_counted(counters, "copies"),
        output_bytes=_counted(counters, "copied_bytes"),
        hidden_s=_counted(counters, "copy_hidden_s"),
        exposed_s=_counted(counters, "copy_exposed_s"),
        places=tuple(
            CopyPlace(
                range=place, operator=operator, module=module or None, calls=calls, copied_bytes=num_bytes,
                seconds=seconds,
            )
            for (place, operator, module), (calls, num_bytes, seconds) in largest
        ),
    )  # fmt: skip


def kernel_name(name: str) -> str:
    """Shorten `void at::native::vectorized_kernel<4, ...>(int, ...)` to `at::native::vectorized_kernel`."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0] or name


def _by_module(operators: Operators) -> _Rows:
    rows: _Rows = defaultdict(lambda: [0.0, 0.0, 0.0])
    if operators.device_work:
        for work in operators.device_work:
            module = None if work.operator is None else work.operator.module
            name = kernel_name(work.event.name) if work.operator is None else work.operator.event.name
            _add(rows[module_kind(module or _OUTSIDE), name], 0, work.end_ns - work.begin_ns)
        return rows
    for call in operators.calls:
        _add(rows[module_kind(call.module or _OUTSIDE), call.event.name], 0, call.self_ns)
    return rows


def _copies(operators: Operators) -> _Rows:
    rows: _Rows = defaultdict(lambda: [0.0, 0.0, 0.0])
    for place, operator, module, num_bytes, ns in _copy_calls(operators):
        _add(rows[place, operator, module_kind(module or "")], num_bytes, ns)
    return rows


def _copy_calls(operators: Operators) -> Iterator[tuple[str, str, str | None, int, int]]:
    """Yield (range, operator, module, bytes, nanoseconds) of each copy."""
    ranges = operators.recording.ranges

    def place(index: int) -> str:
        return ranges[index].name if index >= 0 else _OUTSIDE_RANGES

    if not operators.device_work:
        for call in operators.calls:
            if call.event.name == _COPY:
                num_bytes = call.event.args.first_input_bytes()
                yield base_name(place(call.range_index)), call.outermost, call.module, num_bytes, call.self_ns
        return
    for work in operators.device_work:
        if work.event.cat == "gpu_memcpy":
            launcher = work.operator
            where = _OUTSIDE_RANGES if launcher is None else base_name(place(launcher.range_index))
            module = None if launcher is None else launcher.module
            yield where, work.event.name, module, work.event.args.copied_bytes or 0, work.end_ns - work.begin_ns


def _add(row: list[float], num_bytes: int, ns: int) -> None:
    row[0] += 1
    row[1] += num_bytes
    row[2] += ns / 1e9


def _medians(iterations: Sequence[_Rows]) -> dict[tuple[str, ...], tuple[float, float, float]]:
    keys = dict.fromkeys(key for rows in iterations for key in rows)
    nothing = [0.0, 0.0, 0.0]

    def median(key: tuple[str, ...], column: int) -> float:
        return statistics.median(rows.get(key, nothing)[column] for rows in iterations)

    return {key: (median(key, 0), median(key, 1), median(key, 2)) for key in keys}


def _counted(iterations: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median([counters.get(name, 0.0) for counters in iterations] or [0.0])
