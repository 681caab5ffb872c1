"""The question before a large download."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_cli.checkpoints import hub
from omni_cli.checkpoints.hub import Download
from omni_cli.cli.profile_choice import pull
from omni_cli.core.errors import UsageError


def test_above_5_gb_it_needs_a_terminal_or_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is all that is replaced: 5 GB cannot be served in a test."""
    plan = Download("someone/large", None, tmp_path, ("a",), 6 * 10**9, 6 * 10**9)
    monkeypatch.setattr(hub, "plan_download", lambda repo_id, revision: plan)
    monkeypatch.setattr(hub, "fetch", lambda *arguments: tmp_path)
    with pytest.raises(UsageError, match=r"Download someone/large, 5\.6 GiB") as raised:
        pull("someone/large", None, yes=False, quiet=True)
    assert "omni models pull someone/large --yes" in str(raised.value.hint)
    assert pull("someone/large", None, yes=True, quiet=True) == (plan, tmp_path)
