"""Machines with low limits, full or read-only folders, and odd names: a command works, or names the cause."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.omni_process import OmniProcess, run_omni
from support.samples import sample

pytestmark = pytest.mark.slow
TEXT = "generate hi -p tiny-omni --modalities text --max-tokens 4"
IMAGE = "generate cat -p tiny-image --num-inference-steps 2"
FAILED = 6


def limit_of(soft: int, hard: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def with_mount(options: str, where: str) -> tuple[str, ...]:
    """Return a prefix of a command that sees a new file system there."""
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
    prefix = (*words, f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"', where)
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    return prefix


@pytest.mark.parametrize(("soft", "hard"), sample([(64, 1024), (256, 256), (128, 128)], [(64, 1024)]))
def test_a_low_limit_of_open_files_is_enough_or_raised(folder: Path, soft: int, hard: int) -> None:
    ended = run_omni(folder, *TEXT.split(), preexec_fn=limit_of(soft, hard))
    ended.check_clean()
    assert ended.code == 0, ended.err


def test_a_limit_of_open_files_that_is_too_low_is_named(folder: Path) -> None:
    ended = run_omni(folder, *TEXT.split(), preexec_fn=limit_of(40, 40))
    ended.check_clean()
    ended.check_error(FAILED, "too many open files: the limit is 40", "`ulimit -n")


@pytest.mark.parametrize("options", sample(["ro", "nr_inodes=1"], ["ro"]))
def test_shared_memory_that_cannot_be_written_is_named(folder: Path, options: str) -> None:
    ended = run_omni(folder, *TEXT.split(), prefix=with_mount(options, "/dev/shm"))
    ended.check_clean()
    ended.check_error(FAILED, "error: stage `thinker`: cannot write to /dev/shm: ", "--shm-size")


# Three inodes: the folder itself, the one that Python tries, and one more.
@pytest.mark.parametrize(
    ("options", "command"),
    sample([("size=4k", TEXT), ("nr_inodes=3", TEXT), ("nr_inodes=2", IMAGE)], [("size=4k", TEXT)]),
)
def test_a_full_folder_for_temporary_files_is_named(folder: Path, options: str, command: str) -> None:
    temporary = folder / "tmp"
    temporary.mkdir()
    prefix = with_mount(options, str(temporary))
    temporary.rmdir()
    ended = run_omni(folder, *command.split(), prefix=prefix)
    ended.check_clean()
    ended.check_error(FAILED, "No space left on device", "TMPDIR")


@pytest.mark.parametrize(
    ("name", "command"),
    sample([("tiny-omni", TEXT), ("tiny-image", IMAGE), ("tiny-glm-image", "generate cat")], [("tiny-omni", TEXT)]),
)
def test_the_path_of_a_checkpoint_may_be_a_pattern(
    folder: Path, copy_of: Callable[[str], Path], name: str, command: str
) -> None:
    model = folder / "mödels *? [new]" / name
    model.parent.mkdir()
    copy_of(name).rename(model)
    ended = run_omni(folder, *command.split(), "--model", str(model.relative_to(folder)))
    ended.check_clean()
    assert ended.code == 0, ended.err


LONG = (
    "bench --num-iters 4000",
    "profile --num-iters 4000",
    "serve --port 0",
    "generate cat --num-inference-steps 1000",
)


@pytest.mark.parametrize("command", sample(LONG, LONG[:1]))
def test_a_killed_command_leaves_nothing(folder: Path, command: str) -> None:
    process = OmniProcess(folder, *command.split(), "-p", "tiny-image", warm=True)
    process.wait_for(lambda: any(process.temporary.glob("omni-*/stacks.txt")))  # a stage loads
    process.interrupt(signal.SIGKILL)  # to its whole group, as `timeout` does
    ended = process.end()
    ended.check_clean()
    assert ended.code == -signal.SIGKILL


@pytest.mark.nightly
def test_commands_that_start_together_build_a_model_once(folder: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    folders = [folder / str(number) for number in range(2)]
    for each in folders:
        each.mkdir()
    for process in [OmniProcess(each, *IMAGE.split(), environment=cache) for each in folders]:
        ended = process.end()
        ended.check_clean()
        assert (ended.code, ended.output_files) == (0, ("0.png",)), ended.err


@pytest.mark.parametrize("name", ["torchaudio", "torchcodec"])
def test_a_package_for_gpus_beside_a_torch_for_processors_is_not_imported(folder: Path, name: str) -> None:
    """PyPI's builds, which vLLM's CPU build requires: a build of the checkpoint and both stages import transformers."""
    packages = folder / "packages"
    for place, text in (
        (f"{name}/__init__.py", "raise OSError('Could not load this library: libcudart.so.13')"),
        (f"{name}-2.11.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.11.0\n"),
    ):
        (packages / place).parent.mkdir(parents=True)
        (packages / place).write_text(text)
    environment = {"PYTHONPATH": str(packages), "XDG_CACHE_HOME": str(folder / "cache")}
    ended = run_omni(folder, *TEXT.split(), environment=environment)
    assert ended.code == 0, ended.err
