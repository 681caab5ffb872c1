"""README.md is true: its profile is valid, its commands exist."""

import re
from pathlib import Path

from omni_cli.cli.app import run
from omni_cli.config.loader import load_profile

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_profile_is_valid(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    path = tmp_path / "example.yaml"
    path.write_text(example)
    assert [stage.name for stage in load_profile(str(path)).stages] == ["thinker", "talker", "token2wav"]


def test_every_command_of_the_table_exists_and_none_is_missing(capsys) -> None:
    named = set(re.findall(r"^\| `omni (\w+)", README, flags=re.MULTILINE))
    assert run(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2]
    assert named == set(re.findall(r"^  (\w+)  ", commands, flags=re.MULTILINE))
