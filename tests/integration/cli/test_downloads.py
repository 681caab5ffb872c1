"""Downloads of a real checkpoint from a server that speaks the hub's protocol, with faults planted in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hub_server import COMMIT, REPO, HubFaults, HubServer, read_files
from support.omni_process import SHORT, Ended, OmniProcess, run_omni

pytestmark = pytest.mark.slow
USAGE, INTERRUPTED = 2, 130
WEIGHTS = "model.safetensors"
UNUSED = {"pytorch_model.bin": b"a", "onnx/model.onnx": b"b", "README.md": b"c", "original/weights.pth": b"d"}


@pytest.fixture(scope="module")
def files(tiny_omni_path: Path) -> dict[str, bytes]:
    return read_files(tiny_omni_path)


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[HubServer]:
    with HubServer({**files, **UNUSED}) as server:
        yield server


class Cache:
    """Commands that use one cache and one server; each in a folder of its own."""

    def __init__(self, folder: Path, hub: HubServer) -> None:
        self.folder = folder
        self.environment = {"HF_HOME": str(folder / "cache"), "HF_ENDPOINT": hub.url}
        self._num = 0

    def _options(self, options: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        self._num += 1
        place = self.folder / f"run-{self._num}"
        place.mkdir()
        return place, {**options, "environment": {**self.environment, **options.pop("environment", {})}}

    def run(self, *arguments: str, **options: Any) -> Ended:
        place, options = self._options(options)
        return run_omni(place, *arguments, **options)

    def start(self, *arguments: str, **options: Any) -> OmniProcess:
        place, options = self._options(options)
        return OmniProcess(place, *arguments, **options)

    @property
    def snapshot(self) -> Path:
        return self.folder / "cache/hub" / f"models--{REPO.replace('/', '--')}" / "snapshots" / COMMIT

    @property
    def remnants(self) -> list[Path]:
        return list(self.folder.glob("cache/**/*.incomplete"))

    def check_holds(self, files: dict[str, bytes]) -> None:
        assert read_files(self.snapshot) == files
        assert self.remnants == []


@pytest.fixture
def cache(tmp_path: Path, hub: HubServer) -> Cache:
    return Cache(tmp_path, hub)


def test_only_the_needed_files_come_and_run_offline(cache: Cache, hub: HubServer, files: dict[str, bytes]) -> None:
    ended = cache.run("models", "pull", REPO)
    ended.check_clean()
    assert (ended.code, ended.out) == (0, f"{cache.snapshot}\n"), ended.err
    assert ended.err.startswith(f"downloading {REPO}: 6 MiB of 7 MiB, {len(files)} files")
    cache.check_holds(files)
    assert hub.num_sent == sum(map(len, files.values()))
    hub.stop()
    listed = cache.run("models", "list", "--json").document["models"][0]
    assert (listed["model"], listed["complete"], listed["derives_profile"]) == (REPO, True, True)
    assert listed["size_bytes"] == hub.num_sent
    for environment in ({}, {"HF_HUB_OFFLINE": "1"}):
        ended = cache.run("generate", "--model", REPO, "hello", *SHORT, environment=environment)
        ended.check_clean()
        assert (ended.code, ended.output_files) == (0, ("0.wav",)), ended.err
    cache.run("models", "remove", REPO).check_error(USAGE, "no terminal", "--yes")
    assert cache.run("models", "remove", REPO, "--yes").code == 0
    assert not cache.snapshot.exists()
    cache.run("models", "remove", REPO, "--yes").check_error(USAGE, "not in the cache")
    cache.run("models", "pull", REPO).check_error(USAGE, "the Hugging Face hub is unreachable")


def test_a_model_is_downloaded_by_the_command_that_uses_it(cache: Cache, files: dict[str, bytes]) -> None:
    ended = cache.run("generate", "--model", REPO, "hello", *SHORT)
    ended.check_clean()
    assert (ended.code, ended.output_files) == (0, ("0.wav",)), ended.err
    assert f"downloading {REPO}: 6 MiB" in ended.err
    cache.check_holds(files)


@pytest.mark.parametrize(
    "arguments",
    [
        ("models", "pull", REPO),
        ("generate", "--model", REPO, "hello"),
        ("serve", "--model", REPO, "--port", "0"),
        ("chat", "--model", REPO),
        ("bench", "--model", REPO),
        ("bench", "--profile", "tiny-omni", "--vary", f"model=builtin:tiny-omni,{REPO}"),
        ("profile", "--model", REPO),
        ("tune", "--model", REPO, "--search", "thinker.max_num_seqs=1,2"),
        ("verify", "--model", REPO),
        ("verify", "--url", "http://127.0.0.1:9", "--model", REPO),
        ("bisect", "HEAD~1", "HEAD", "--model", REPO),
    ],
    ids=" ".join,
)
def test_a_large_model_is_asked_for_by_each_command(arguments: tuple[str, ...], cache: Cache, hub: HubServer) -> None:
    hub.faults = HubFaults(sizes={WEIGHTS: 6 * 10**9})
    ended = cache.run(*arguments)
    assert (ended.code, ended.out) == (USAGE, ""), ended.err
    assert f"error: no terminal to ask on: Download {REPO}, 5.6 GiB?" in ended.err
    assert f"hint: to agree, run `omni models pull {REPO} --yes`" in ended.err
    assert hub.sent[WEIGHTS] == 0


# In the weights; in the header of the second file; hard, as a router that restarts.
CUTS = [
    *((WEIGHTS, position, reset) for position in (0, 1, 3_000_000, -1) for reset in (False, True)),
    ("spk_dict.pt", 7, False),
    ("config.json", 1, False),
]


@pytest.mark.parametrize(("name", "position", "reset"), CUTS)
def test_a_cut_connection_is_resumed(
    name: str, position: int, reset: bool, cache: Cache, hub: HubServer, files: dict[str, bytes]
) -> None:
    position %= len(files[name])
    hub.faults = HubFaults(cuts={name: [position, position]}, reset=reset)
    ended = cache.run("models", "pull", REPO)
    ended.check_clean()
    assert ended.code == 0, ended.err
    cache.check_holds(files)
    starts = [start for file, start in hub.ranges if file == name]
    # Of a connection that ends early, whole pieces of 1 MiB are kept; after a hard end the file begins again.
    kept = 0 if reset else position >> 20 << 20
    assert starts == [0, kept, kept]


@pytest.mark.parametrize("status", [429, 500])
def test_a_busy_server_is_asked_again(status: int, cache: Cache, hub: HubServer, files: dict[str, bytes]) -> None:
    hub.faults = HubFaults(status=status, num_failures=2)
    ended = cache.run("models", "pull", REPO)
    assert (ended.code, ended.out) == (0, f"{cache.snapshot}\n"), ended.err
    cache.check_holds(files)


def test_a_server_that_disconnects_or_stalls_is_named_and_later_resumed(
    cache: Cache, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults = HubFaults(gone_after=2_000_000)
    ended = cache.run("models", "pull", REPO)
    ended.check_clean()
    announced, *_, error = ended.err.partition("\n")
    assert announced.startswith(f"downloading {REPO}")
    while error.startswith("["):  # progress
        error = error.partition("\n")[2]
    assert ended.code == USAGE and error.startswith(f"error: cannot download `{REPO}`: "), ended.err
    assert f"omni models pull {REPO}" in error
    assert cache.remnants == [] and not (cache.snapshot / WEIGHTS).exists()
    (listed,) = [m for m in cache.run("models", "list", "--json").document["models"] if m["model"] == REPO]
    assert not listed["complete"]
    cache.run("models", "pull", REPO, environment={"HF_HUB_OFFLINE": "1"}).check_error(USAGE, "not all of it")
    hub.faults = HubFaults(stalls_at={WEIGHTS: 100})
    ended = cache.run("models", "pull", REPO, environment={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
    assert ended.code == USAGE and "error: cannot download" in ended.err, ended.err
    before = hub.sent["spk_dict.pt"]
    hub.faults = HubFaults()
    assert cache.run("models", "pull", REPO).code == 0
    cache.check_holds(files)
    assert hub.sent["spk_dict.pt"] == before == len(files["spk_dict.pt"])


@pytest.mark.parametrize(
    ("arguments", "environment", "gated", "parts"),
    [
        (("someone/else",), {}, False, ("`someone/else` is not on the Hugging Face hub", "hf auth login")),
        ((REPO, "--revision", "v9"), {}, False, ("has no revision `v9`",)),
        ((REPO,), {}, True, ("is gated", f"/{REPO}", "hf auth login")),
        ((REPO,), {"HF_TOKEN": "wrong"}, False, ("rejects the token", "HF_TOKEN")),
        ((REPO,), {"HF_HUB_OFFLINE": "1"}, False, ("not in the cache", "HF_HUB_OFFLINE")),
        (("nonsense",), {}, False, ("not a repo id",)),
    ],
)
def test_what_cannot_be_downloaded_is_one_clear_error(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    gated: bool,
    parts: tuple[str, ...],
    cache: Cache,
    hub: HubServer,
) -> None:
    hub.faults = HubFaults(gated=gated)
    ended = cache.run("models", "pull", *arguments, environment=environment)
    ended.check_clean()
    ended.check_error(USAGE, *parts)
    assert cache.remnants == []


def test_a_revision_is_kept_beside_main(cache: Cache, files: dict[str, bytes]) -> None:
    assert cache.run("models", "pull", REPO, "--revision", "v1").code == 0
    cache.check_holds(files)
    again = cache.run("models", "pull", REPO, "--revision", "v1", "--json", environment={"HF_HUB_OFFLINE": "1"})
    assert again.document["downloaded_bytes"] == 0


@pytest.mark.parametrize(("options", "part"), [("size=1m", "bytes free"), ("size=16k", "No space"), ("ro", "cannot")])
def test_a_full_or_read_only_cache_is_named(options: str, part: str, cache: Cache) -> None:
    place = cache.folder / "cache"
    place.mkdir()
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
    prefix = (*words, f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"', str(place))
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    ended = cache.run("models", "pull", REPO, prefix=prefix)
    ended.check_clean()
    assert ended.code == USAGE, ended.err
    assert part in ended.err and "HF_HUB_CACHE" in ended.err, ended.err
    assert ended.err.count("error:") == 1


def test_a_second_process_waits_and_downloads_nothing_twice(
    cache: Cache, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults = HubFaults(pause_s=0.05)
    first = cache.start("models", "pull", REPO)
    first.wait_for(lambda: hub.sent[WEIGHTS] > 0)
    second = cache.run("models", "pull", REPO)
    assert first.end().code == second.code == 0, second.err
    assert f"another process downloads {REPO}: waiting for it" in second.err
    cache.check_holds(files)
    assert hub.num_sent == sum(map(len, files.values()))


def test_an_interrupted_download_goes_on_with_the_missing_files(
    cache: Cache, hub: HubServer, files: dict[str, bytes]
) -> None:
    hub.faults = HubFaults(pause_s=0.05)
    running = cache.start("models", "pull", REPO)
    running.wait_for(lambda: hub.sent[WEIGHTS] > 2_000_000)
    running.interrupt()
    ended = running.end()
    ended.check_clean()
    assert ended.code == INTERRUPTED, ended.err
    assert cache.remnants == []
    assert not (cache.snapshot / WEIGHTS).exists()
    before = hub.sent["spk_dict.pt"]
    hub.faults = HubFaults()
    assert cache.run("models", "pull", REPO).code == 0
    cache.check_holds(files)
    assert hub.sent["spk_dict.pt"] == before == len(files["spk_dict.pt"])
