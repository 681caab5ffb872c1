"""Folders of a Ray whose owner was killed are removed by the next start, those of a living owner are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from omni_cli.ray_integration.cluster import make_owned, remove_abandoned

_OWNER = """
import sys
from omni_cli.ray_integration.cluster import make_owned
print(make_owned(sys.argv[1])[0], flush=True)
sys.stdin.read()
"""


def test_a_folder_lives_as_long_as_its_owner(tmp_path: Path) -> None:
    (tmp_path / "omni-ray-being-made").mkdir()
    mine, _ = make_owned(str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], **pipes) as owner:
        theirs = Path(owner.stdout.readline().strip())
        (theirs / "session" / "sockets").mkdir(parents=True)
        remove_abandoned(str(tmp_path))
        assert theirs.is_dir()
        owner.kill()
        owner.wait()
        assert theirs.is_dir()
        remove_abandoned(str(tmp_path))
    assert not theirs.exists()
    assert Path(mine).is_dir() and (tmp_path / "omni-ray-being-made").is_dir()
