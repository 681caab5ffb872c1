"""State of NVIDIA devices from NVML: utilisation, clocks, temperature, and causes of throttling."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_cli.machine import visible_devices


@dataclass(frozen=True)
class GpuState:
    """`throttled` names what holds the clock down now: `power_cap`, `thermal`, `hw_slowdown`, `power_brake`."""

    utilisation_percent: float
    sm_clock_mhz: float
    temperature_c: float
    power_w: float
    throttled: tuple[str, ...] = ()


class Nvml:
    """The devices that this process may use; `names` are their (index, name)."""

    def __init__(self, library: Any, devices: list[tuple[int, Any]]) -> None:
        self._nvml = library
        self._devices = devices
        self.names = tuple((index, str(library.nvmlDeviceGetName(handle))) for index, handle in devices)

    @classmethod
    def open(cls, variables: Mapping[str, str] = os.environ) -> Nvml | None:
        """Open NVML; None without a driver or its Python binding."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        except pynvml.NVMLError:
            return None
        shown = visible_devices(uuids, variables.get("CUDA_VISIBLE_DEVICES"))
        return cls(pynvml, [(index, handles[index]) for index in shown if _tells(pynvml, handles[index])])

    def read(self) -> tuple[GpuState, ...]:
        return tuple(_state(self._nvml, handle) for _, handle in self._devices)


def _tells(nvml: Any, handle: Any) -> bool:
    """Return True for a device that answers all queries; a part of one (MIG) does not."""
    try:
        _state(nvml, handle)
    except nvml.NVMLError:
        return False
    return True


def _state(nvml: Any, handle: Any) -> GpuState:
    return GpuState(
        utilisation_percent=float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        sm_clock_mhz=float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        temperature_c=float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        # By its older name, which drivers of all ages know.
        throttled=throttle_names(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    )


# NVML's bits, without idle, clocks that somebody set, and boost groups, which are no throttling.
_THROTTLE_BITS = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x20: "thermal",
    0x40: "thermal",
    0x80: "power_brake",
}


def throttle_names(bits: int) -> tuple[str, ...]:
    """Return the causes of throttling in NVML's mask of reasons."""
    return tuple(dict.fromkeys(name for bit, name in _THROTTLE_BITS.items() if bits & bit))
