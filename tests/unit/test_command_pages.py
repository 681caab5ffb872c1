"""The check of docs/commands: what it accepts and reports, and that the pages are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import command_pages

from omni_cli.cli.app import run

pages = command_pages.load()

RUN = """\
$ omni bench --num-iters 4
tiny-image: end to end, batch 1, 32 tokens in
  Latency (median, 95% CI):   71.83 ms  [49.87, 68.80]   4 runs
  peak host rss                 579 MiB     575 MiB  0.993 (-4 MiB)     less memory
  e2e   -22.1% [-32.9%, -9.5%]   limit 5%   inconclusive
{"url": "http://127.0.0.1:41233", "port": 41233, "time": "2026-11-20T19:10:29.482+00:00", "id": "34662cb6246a4001"}
out/0.png   64x64 image
$ echo $?
3
"""
NUMBERS = (("varies", "numbers"),)


def differences(shown: str, printed: str, notes: tuple[tuple[str, str], ...] = NUMBERS) -> str:
    return pages.differences(pages.Block(0, 0, "console", shown, notes), printed, "page.md")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("71.83 ms", "1.2 s"),
        ("579 MiB     575 MiB", " 1.1 GiB     990 MiB"),
        ("[49.87, 68.80]", "[102.5, 9.1]"),
        ("[49.87, 68.80]", "[1272, 2088]"),
        ("-22.1% [-32.9%, -9.5%]", "+3.0% [-1%, +12.5%]"),
        ("(-4 MiB)     less", "(+12 MiB)   less"),
        (":41233", ":8000"),
        ('"port": 41233', '"port": 8000'),
        ("2026-11-20T19:10:29.482+00:00", "2027-01-02T03:04:05.678+00:00"),
        ("34662cb6246a4001", "d14336c48e5b49faacb7"),
    ],
)
def test_other_numbers_pass(was: str, now: str) -> None:
    assert was in RUN
    assert differences(RUN, RUN.replace(was, now)) == ""
    assert differences(RUN, RUN.replace(was, now), ()) != ""


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("end to end", "image"),
        ("median", "mean"),
        ("batch 1", "batch 2"),
        ("32 tokens", "64 tokens"),
        ("4 runs", "5 runs"),
        ("[49.87, 68.80]", "[n/a]"),
        ("71.83 ms", "n/a"),
        ("inconclusive", "pass"),
        ("less memory", "more memory"),
        ("127.0.0.1", "0.0.0.0"),
        ("out/0.png", "out/1.png"),
        ("64x64", "64x32"),
        ('"port"', '"ports"'),
        ("out/0.png   64x64 image\n", ""),
        ("$ echo $?\n3\n", ""),
        ("$ echo $?\n3\n", "$ echo $?\n1\n"),
        ("\n  e2e", "\n\n  e2e"),
    ],
)
def test_anything_else_is_found(was: str, now: str) -> None:
    assert was in RUN
    found = differences(RUN, RUN.replace(was, now))
    assert found.startswith("--- page.md: the page\n+++ page.md: printed now\n"), found


def test_a_changed_option_or_default_in_the_help_is_found() -> None:
    shown = "$ omni serve --help\n  --timeout SECONDS   Longest time.  [default: 600.0]\n"
    assert differences(shown, shown, ()) == ""
    assert "+  --timeout SECONDS   Longest time.  [default: 300.0]" in differences(
        shown, shown.replace("600", "300"), ()
    )
    assert "+  --time-limit SECONDS" in differences(shown, shown.replace("--timeout", "--time-limit"), ())


def test_expressions_of_a_page() -> None:
    shown = "$ omni generate\n  2 token2wav  3 MiB\n some text\nout/0.wav\n"
    other = shown.replace(" some text\n", " quite another\ntext\n")
    notes = (("varies", r"/(?<=MiB\n)[\s\S]+?(?=\nout)/"),)
    assert differences(shown, other) != ""
    assert differences(shown, other, notes) == ""
    assert differences(shown, shown.replace(" some text\n", ""), notes) != ""
    assert differences(shown, shown.replace(" some text\n", ""), (("may be missing", "/^ some text\n/"),)) == ""
    for wrong in ("number", "/(/", "/"):
        with pytest.raises(pages.PageError, match="varies"):
            differences(shown, shown, (("varies", wrong),))


PAGE = """\
# A page

<!-- file: list.txt -->
```text
one
two
```

<!-- varies: numbers -->
```console
$ cat list.txt
one
two
$ printf 'took %s s\\n' 0.5
took 0.25 s
$ ls nowhere; echo "$HOME" && false
ls: cannot access 'nowhere': No such file or directory
/home/you
$ echo $?
1
$ echo one \\
    two >&2
one two
```

Text.

```console
$ name=kept; pwd
/home/you
$ echo $name
kept
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_a_page_that_is_true_stays_as_it_is(page: Path) -> None:
    assert pages.check_page(page, write=True) == ""
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("was", "now", "finding"),
    [
        ("one\ntwo\n$", "one\n$", "+two"),
        ("took 0.25", "needed 0.25", "-needed #"),
        ("$ echo $?\n1\n", "$ echo $?\n2\n", "-2"),
        ("$ echo $?\n1\n", "", "+$ echo $?"),
        ("\nkept\n", "\nlost\n", "+kept"),
        ("\nkept\n", "\n", "+kept"),
        ("printf 'took", "printf 'lasted", "+lasted"),
    ],
)
def test_a_stale_page_is_found_and_written(page: Path, was: str, now: str, finding: str) -> None:
    assert was in PAGE
    page.write_text(PAGE.replace(was, now, 1))
    found = pages.check_page(page)
    assert finding in found
    assert page.read_text() == PAGE.replace(was, now, 1)
    assert pages.check_page(page, write=True) == found
    assert pages.check_page(page) == ""
    if "printf" not in was:
        # A page is one session: all of it is that of now.
        assert page.read_text() == PAGE.replace("took 0.25 s", "took 0.5 s")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("<!-- varies: numbers -->\n```", "<!-- varies: numbers -->\n\n```"),
        ("<!-- varies: numbers -->", "<!-- vary: numbers -->"),
        ("Text.\n\n```console", "Text.\n\n  ```console"),
        ("kept\n```\n", "kept\n"),
        ("$ name=kept; pwd", "kept"),
        ("$ name=kept; pwd", "$ exit 3"),
    ],
)
def test_ignored_commands_are_rejected(page: Path, was: str, now: str) -> None:
    assert was in PAGE
    page.write_text(PAGE.replace(was, now))
    with pytest.raises(pages.PageError):
        pages.check_page(page)


def test_a_command_that_does_not_end_is_ended(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "COMMAND_TIMEOUT_S", 0.5)
    page.write_text("```console\n$ sleep 1000 & echo $!\n$ echo begun; sleep 1000\n```\n")
    with pytest.raises(pages.PageError, match=r"`echo begun; sleep 1000`: still running after .*\nbegun"):
        pages.check_page(page)


def test_background_processes_end_with_the_page(page: Path) -> None:
    page.write_text("```console\n$ sleep 1000 & echo $!\n```\n")
    pages.check_page(page, write=True)
    (process,) = re.findall(r"^\d+$", page.read_text(), flags=re.MULTILINE)
    command_line = Path(f"/proc/{process}/cmdline")
    # Where nobody collects the processes whose parent is gone, a dead one stays listed, without a command line.
    assert not command_line.exists() or command_line.read_bytes() == b""


def test_warnings_of_a_busy_machine_are_left_out(page: Path) -> None:
    warning = "warning: a noisy neighbour: other programs used 1.1 of 2 cores\n\nhint: end them\n"
    page.with_name("printed").write_text(f"Saved a.json\n{warning}warning: something else\n\nhint: do it\n")
    page.write_text(
        f"```console\n$ cat {page.with_name('printed')}\nSaved a.json\nwarning: something else\n\nhint: do it\n```\n"
    )
    assert pages.check_page(page) == ""


def test_every_command_has_a_page_that_shows_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    commands = re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("Commands:")[2], flags=re.MULTILINE)
    assert {path.stem for path in pages.PAGES.glob("*.md")} == {"README", *commands}
    index = (pages.PAGES / "README.md").read_text()
    for command in commands:
        assert f"[{command}]({command}.md)" in index
        assert run([command, "--help"]) == 0
        below = re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("Commands:")[2], flags=re.MULTILINE)
        text = (pages.PAGES / f"{command}.md").read_text()
        assert text.startswith(f"# omni {command}\n\n")
        for name in [f"{command} {sub}" for sub in below] or [command]:
            assert f"$ omni {name} --help\nUsage: omni {name} " in text


@pytest.mark.parametrize("page", sorted(pages.PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_links_lead_somewhere_and_no_machine_is_named(page: Path) -> None:
    text = page.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert re.findall(r"/root|/tmp/|site-packages|/work/", text) == []
    prose = re.sub(r"^```.*?^```$|^<!--.*?-->$|^\|.*$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 120] == []
