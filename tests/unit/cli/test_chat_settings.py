"""`/set` of `omni chat` lists what is in effect, and who named it."""

from __future__ import annotations

from pathlib import Path

from omni_cli.cli.chat.session import Conversation
from omni_cli.cli.profile.run import RECORD_NAME, free_folder

GREEDY = {"temperature": {"value": 0.0, "source": "default"}, "max_tokens": {"value": 64, "source": "profile"}}


def test_the_servers_sampling_is_listed_below_the_fields() -> None:
    talk = Conversation(defaults=GREEDY)
    assert talk.command("/set") == "  sampling: greedy (default)\n  max_tokens = 64 (profile)"
    talk.command("/set max_tokens 8")
    talk.command("/set top_p 0.9")
    sampling = "  sampling: temperature 1 (default), top_p 0.9 (request)"
    assert talk.command("/set") == f"  max_tokens = 8\n  top_p = 0.9\n{sampling}"
    assert Conversation().command("/set") == "nothing is set"


def test_a_saved_conversation_tells_that_it_replaced_a_file(tmp_path: Path) -> None:
    talk, path = Conversation(), tmp_path / "talk.json"
    assert talk.command(f"/save {path}") == f"saved {path}"
    assert talk.command(f"/save {path}") == f"saved {path}, in place of an earlier file"


def test_a_second_profile_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    assert free_folder(folder) == folder
    for made in (folder, tmp_path / "profile-2"):
        made.mkdir()
        assert free_folder(folder) == made
        (made / RECORD_NAME).touch()
    assert free_folder(folder) == tmp_path / "profile-3"
