"""The kernel's files and the output of NVIDIA's tool, read from trees of such files."""

import os
from pathlib import Path

import pytest

from omni_cli.core.machine import parse_nvidia_smi, read_cpu, read_folder, read_memory

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   12000000 kB\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_without_a_container(tmp_path: Path) -> None:
    memory = read_memory(tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"}))
    assert memory.total_bytes == 16_000_000 * 1024
    assert memory.available_bytes == 12_000_000 * 1024
    assert memory.limit_bytes is None


def test_memory_limit_of_a_version_2_container(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/box/memory.max": "max\n",
        # The limit of a group above counts as well; dropped page cache becomes free again.
        "sys/fs/cgroup/pod/memory.max": "2000000000\n",
        "sys/fs/cgroup/pod/memory.current": "1500000000\n",
        "sys/fs/cgroup/pod/memory.stat": "anon 900000000\ninactive_file 600000000\n",
    }
    memory = read_memory(tree(tmp_path, files))
    assert memory.limit_bytes == 2_000_000_000
    assert memory.available_bytes == 1_100_000_000


def test_memory_limit_of_a_version_1_container(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/box\n1:cpu:/\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "3000000000\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "1000000000\n",
    }
    memory = read_memory(tree(tmp_path, files))
    assert memory.limit_bytes == 3_000_000_000
    assert memory.available_bytes == 2_000_000_000


V1 = "sys/fs/cgroup/cpu"
WHOLE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("group", "files", "quota", "usable"),
    [
        ("0::/", {}, None, WHOLE),
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None, WHOLE),
        ("0::/", {"sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1.0, 1),
        ("0::/", {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5, 1),
        ("2:cpu:/", {f"{V1}/cpu.cfs_quota_us": "-1\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, None, WHOLE),
        ("2:cpu:/", {f"{V1}/cpu.cfs_quota_us": "100000\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, 1.0, 1),
        # A quota of the service itself, below one of all services; named as systemd mounts both controllers.
        (
            "2:cpu,cpuacct:/slice/service",
            {
                f"{V1}/slice/service/cpu.cfs_quota_us": "150000\n",
                f"{V1}/slice/service/cpu.cfs_period_us": "100000\n",
                f"{V1}/slice/cpu.cfs_quota_us": "400000\n",
                f"{V1}/slice/cpu.cfs_period_us": "100000\n",
            },
            1.5,
            1,
        ),
        ("0::/slice/service", {"sys/fs/cgroup/slice/cpu.max": "150000 100000\n"}, 1.5, 1),
        # As seen in a container without a namespace of its own for control groups.
        ("0::/docker/1a2b", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5, 1),
        ("0::/", {"sys/fs/cgroup/cpu.max": "99900000 100000\n"}, 999.0, WHOLE),
    ],
)
def test_cpu_quota(group: str, files: dict[str, str], quota: float | None, usable: int, tmp_path: Path) -> None:
    cpu = read_cpu(tree(tmp_path, {"proc/self/cgroup": f"{group}\n", **files}))
    assert (cpu.quota_cores, cpu.usable_cores) == (quota, usable)


def test_cpu_model_and_instruction_sets(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: Some CPU 9000\nflags\t\t: fpu sse avx avx2 avx512f\n"
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": cpuinfo}))
    assert cpu.model == "Some CPU 9000"
    assert cpu.instruction_sets == ("avx2", "avx512f")


def test_nvidia_smi() -> None:
    gpus = parse_nvidia_smi(
        "0, NVIDIA H200, 143771, 143000, 570.10, GPU-1a\n1, NVIDIA GB10, [N/A], [N/A], 570.10, GPU-2b\n"
    )
    assert gpus.driver == "570.10"
    assert [(gpu.index, gpu.name, gpu.uuid) for gpu in gpus.devices] == [
        (0, "NVIDIA H200", "GPU-1a"), (1, "NVIDIA GB10", "GPU-2b")
    ]  # fmt: skip
    assert gpus.devices[0].total_bytes == 143771 << 20
    assert gpus.devices[1].total_bytes == 0


def test_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    folder = read_folder(tmp_path / "a" / "b")
    assert folder.writable
    assert folder.free_bytes > 0
    assert not (tmp_path / "a").exists()


def test_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not read_folder(tmp_path / "file" / "cache").writable
