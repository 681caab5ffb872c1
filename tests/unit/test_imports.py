"""Import times: the command line answers without the libraries that take seconds to load."""

import itertools
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import omni_cli

pytestmark = pytest.mark.slow


ROOT = Path(omni_cli.__file__).parent
HEAVY = ["torch", "torchvision", "vllm", "diffusers", "transformers", "accelerate"]
TORCH_FREE = ["cli", "config", "measure.doctor", "records", "report", "requests", "serve"]
TORCH_FREE_MODULES = ["core.errors", "checkpoints.resolve", "checkpoints.derive", "engine.omni_llm"]

BLOCKED_IMPORT = """
import importlib, json, sys

heavy, modules = json.loads(sys.argv[1])

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
for module in modules:
    importlib.import_module(module)
"""

COMMAND = """
import json, sys
from omni_cli.cli.app import run

heavy, arguments = json.loads(sys.argv[1])
code = run(arguments)
loaded = sorted({name.partition(".")[0] for name in sys.modules} & set(heavy))
print("\\n" + json.dumps([int(code), loaded]))
"""

BUILDERS = """
import importlib, json, sys
from omni_cli.config.families import families
from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()
builders = {builder.partition(":")[0] for family in families().values() for builder in family.builtins.values()}
loads_it = []
for module in sorted(builders):
    importlib.import_module(module)
    if json.loads(sys.argv[1]) in sys.modules:
        loads_it.append(module)
print("\\n" + json.dumps([len(builders), loads_it]))
"""

SERVE = """
import json, os, sys
from omni_cli.cli.app import run
from omni_cli.engine.process.fork_server import ForkServer

def start_spare(server):
    print("\\n" + json.dumps([server._preload, "omni_cli.serve.server" in sys.modules]), flush=True)
    os._exit(0)

ForkServer.start_spare = start_spare
run(["serve", "--profile", json.loads(sys.argv[1])])
"""


def python(program: str, argument: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, json.dumps(argument)],
        capture_output=True,
        text=True,
        cwd=ROOT.parent,
        timeout=60,
    )


def modules_of(name: str) -> list[str]:
    found = pkgutil.walk_packages([str(ROOT / name.replace(".", "/"))], prefix=f"omni_cli.{name}.")
    return [f"omni_cli.{name}", *(module.name for module in found)]


def test_some_packages_import_no_heavy_library() -> None:
    """All in one process, which takes a second instead of ten, because blocked imports stay blocked."""
    packages = [modules_of(package) for package in TORCH_FREE]
    assert all(len(modules) > 1 for modules in packages)
    modules = [*itertools.chain(*packages), *(f"omni_cli.{module}" for module in TORCH_FREE_MODULES)]
    result = python(BLOCKED_IMPORT, [HEAVY, modules])
    assert result.returncode == 0, result.stderr


def test_the_blocker_blocks() -> None:
    result = python(BLOCKED_IMPORT, [["json"], ["json.tool"]])
    assert "json.tool is blocked" in result.stderr


def test_small_checkpoints_are_built_without_vllm_which_speaks_while_it_is_loaded() -> None:
    result = python(BUILDERS, "vllm")
    assert result.returncode == 0, result.stderr
    num_builders, loads_it = json.loads(result.stdout.splitlines()[-1])
    assert num_builders > 3 and loads_it == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["profiles", "list"], 0),
        (["profiles", "show", "tiny-omni"], 0),
        (["profiles", "validate", "BAD"], 2),
        (["generate", "--profile", "BAD", "hello"], 2),
        (["generate", "--profile", "no-such-profile", "hello"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_answers_without_heavy_libraries(arguments: list[str], expected: int, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nname: bad\nstages:\n  thinker:\n    kind: arr\n")
    arguments = [str(bad) if argument == "BAD" else argument for argument in arguments]
    # A run decodes audio and images with NumPy; everything else does without it too.
    heavy = HEAVY if arguments[0] == "generate" else [*HEAVY, "numpy"]
    result = python(COMMAND, [heavy, arguments])
    code, loaded = json.loads(result.stdout.splitlines()[-1])
    assert code == expected, result.stderr
    assert loaded == []
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["profiles", "list"], ["pydantic", "numpy", "asyncio"]),
        (["generate", "--profile", "no-such", "hello"], ["pydantic", "numpy", "asyncio"]),
        (["generate", "--model", "/no/such", "hello"], ["pydantic", "numpy", "asyncio"]),
        (["generate", "--profile", "tiny-omni", "--width", "64", "hello"], ["numpy", "msgspec", "asyncio"]),
        (["compare", "no-such.json"], ["pydantic", "asyncio"]),
    ],
)
def test_commands_that_compute_nothing_import_little(arguments: list[str], heavy: list[str]) -> None:
    ended = python(COMMAND, [heavy, arguments])
    assert json.loads(ended.stdout.splitlines()[-1])[1] == [], ended.stderr


def test_a_server_begins_the_imports_of_its_stages_before_its_own() -> None:
    ended = python(SERVE, "tiny-omni")
    preload, has_server = json.loads(ended.stdout.splitlines()[-1])
    assert preload[-1].endswith("preload_vllm") and not has_server, ended.stderr
