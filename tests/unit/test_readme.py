"""README.md and the pages it leads to are true: the profile is valid, the commands exist."""

import re
from pathlib import Path

from omni_cli.cli.app import run
from omni_cli.config.loader import load_profile

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_profile_is_valid(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "profiles.md").read_text(), flags=re.DOTALL)
    path = tmp_path / "example.yaml"
    path.write_text(example)
    assert [stage.name for stage in load_profile(str(path)).stages] == ["thinker", "talker", "token2wav"]


def test_the_five_commands_of_the_table_exist(capsys) -> None:
    named = set(re.findall(r"^\| `omni (\w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE))
    assert run(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2]
    assert len(named) == 5
    assert named <= set(re.findall(r"^  (\w+)  ", commands, flags=re.MULTILINE))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_environment_variable_of_ours_is_listed() -> None:
    sources = [ROOT / "Makefile", *(path for name in ("omni_cli", "scripts") for path in (ROOT / name).rglob("*.py"))]
    names = {name for path in sources for name in re.findall(r"\bOMNI_[A-Z_]+\b", path.read_text())}
    table = (DOCS / "environment.md").read_text()
    assert names == set(re.findall(r"^\| `(OMNI_[A-Z_]+)` \| ours", table, flags=re.MULTILINE))
