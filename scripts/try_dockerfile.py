"""Run a Dockerfile's steps without a container engine, in folders made by debootstrap, and then commands in the result.

    sudo python scripts/try_dockerfile.py FOLDER [--target cpu] [--build-arg NAME=VALUE]... [--run COMMAND]...

For this Dockerfile and its kind: stages from `debian:SUITE-slim` or each other, ARG, ENV, COPY of folders, RUN, USER,
WORKDIR. `--run` runs a command as the image's user. FOLDER, on a disk with 8 GB free, keeps a system per stage; a
stage that is there is not made again. No isolation but the folder: steps see the machine's network and processes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METADATA = {"VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The mounts end with the command.
MOUNTED = """
mount -t proc proc "$0/proc" && mount -t sysfs -o ro sysfs "$0/sys" &&
mkdir -p "$0/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" &&
exec chroot "$@"
"""


@dataclass
class Stage:
    """A stage while its steps run, and what they leave for its commands."""

    folder: Path
    environment: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    directory: str = "/"

    def run(self, command: str) -> None:
        """Run in the shell, with only the image's environment, as the user set so far."""
        words = ["unshare", "--mount", "sh", "-c", MOUNTED, str(self.folder), f"--userspec={self.user}:{self.user}"]
        words += [str(self.folder), "/bin/sh", "-c", f"cd {shlex.quote(self.directory)} && {command}"]
        home = {"HOME": "/root" if self.user == "root" else f"/home/{self.user}"}
        subprocess.run(words, check=True, env=home | self.environment | self.arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="cpu", metavar="STAGE")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--certificates", type=Path, metavar="FILE", help="To trust as well, as behind a proxy.")
    parser.add_argument("--run", action="append", default=[], metavar="COMMAND")
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        parser.error("it needs root and the program `debootstrap`")
    if wrong := [item for item in options.build_arg if "=" not in item]:
        parser.error(f"--build-arg {wrong[0]}: expected NAME=VALUE")
    given = dict(item.split("=", 1) for item in options.build_arg)
    try:
        stage = Build(options.folder.resolve(), given, options.certificates).stage(options.target)
        for command in options.run:
            say(f"{stage.user}$ {command}")
            stage.run(command)
    except subprocess.CalledProcessError as error:
        say(f"error: exit code {error.returncode}: {error.cmd[-1]}")
        return 1
    return 0


class Build:
    def __init__(self, folder: Path, given: dict[str, str], certificates: Path | None) -> None:
        self._folder = folder
        self._certificates = certificates
        self._given = given
        self._steps: dict[str, list[tuple[str, str]]] = {}
        for word, rest in instructions((ROOT / "Dockerfile").read_text()):
            if word == "FROM":
                steps = self._steps.setdefault(rest.rpartition(" AS ")[2], [])
            steps.append((word, rest))

    def stage(self, name: str) -> Stage:
        """Return the stage with all its steps done, and those of the stages that it needs."""
        if name not in self._steps:
            raise SystemExit(f"error: the Dockerfile has no stage {name}: {', '.join(self._steps)}")
        done = self._folder / f"{name}.done"
        stage = Stage(self._folder / name, {"PATH": DEFAULT_PATH})
        if not done.exists():
            shutil.rmtree(stage.folder, ignore_errors=True)
        for word, rest in self._steps[name]:
            self._step(stage, word, rest, is_done=done.exists())
        stage.arguments.clear()
        done.touch()
        return stage

    def _step(self, stage: Stage, word: str, rest: str, *, is_done: bool) -> None:
        match word:
            case "FROM":
                self._begin(stage, rest.partition(" AS ")[0], is_done=is_done)
            case "ARG":
                name, has_default, default = rest.partition("=")
                if name in self._given or has_default:
                    stage.arguments[name] = self._given.get(name, default)
            case "ENV":
                for name, _, value in (item.partition("=") for item in shlex.split(rest)):
                    stage.environment[name] = string.Template(value).substitute(stage.environment)
            case "USER":
                stage.user = rest
            case "WORKDIR":
                stage.directory = rest
            case "COPY" if not is_done:
                self._copy(stage, rest)
            case "RUN" if not is_done:
                started = time.monotonic()
                say(f"{stage.folder.name}: RUN {rest}")
                stage.run(rest)
                say(f"{stage.folder.name}: done in {time.monotonic() - started:.0f} s")
            case _ if word not in METADATA | {"COPY", "RUN"}:
                raise SystemExit(f"error: {word} is not supported")

    def _begin(self, stage: Stage, base: str, *, is_done: bool) -> None:
        if base in self._steps:
            parent = self.stage(base)
            stage.environment |= parent.environment
            stage.user, stage.directory = parent.user, parent.directory
            if not is_done:
                subprocess.run(["cp", "-a", "--reflink=auto", parent.folder, stage.folder], check=True)
        elif not is_done:
            found = re.fullmatch(r"debian:(\w+)-slim", base)
            if found is None:
                raise SystemExit(f"error: FROM {base} is not supported")
            say(f"debootstrap {found[1]}")
            subprocess.run(
                ["debootstrap", "--variant=minbase", found[1], stage.folder], check=True, stdout=subprocess.DEVNULL
            )
            if self._certificates is not None:
                folder = stage.folder / "usr/local/share/ca-certificates"
                folder.mkdir(parents=True)
                shutil.copy(self._certificates, folder / "added.crt")

    def _copy(self, stage: Stage, rest: str) -> None:
        *flags, source, target = shlex.split(rest)
        inside = stage.folder / target.lstrip("/")
        if flags:
            shutil.copytree(self.stage(flags[0].removeprefix("--from=")).folder / source.lstrip("/"), inside)
            return
        lines = (ROOT / ".dockerignore").read_text().splitlines()
        for name in [line[1:] for line in lines if line.startswith("!")]:
            inside.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, inside / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, inside)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The steps of a Dockerfile, each on one line."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        yield word, rest


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
