"""Make docs/terminal.svg, the image of README: real commands with what they print on a terminal.

python scripts/terminal_image.py MODEL    # the folder of SmolLM2-135M-Instruct, from scripts/smollm2.py
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "terminal.svg"
COLUMNS = 104
COMMANDS = (
    'omni generate --model SmolLM2-135M-Instruct --temperature 0 "What is the capital of France?"',
    'omni generate --profile tiny-omni --output-dir out "hello"',
    "omni bench --profile tiny-image --vary num_inference_steps=2,8 --time-budget 30 -q | tail -n 12",
)
_FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def shown(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal that has no live display."""
    parent, child = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "TERM": "dumb",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    process = subprocess.Popen(
        ["bash", "-c", command], stdin=child, stdout=child, stderr=child, cwd=folder, env=environment
    )
    os.close(child)
    printed = b""
    while True:
        try:
            printed += os.read(parent, 65536)
        except OSError:  # the terminal has no writer any more
            break
    if process.wait():
        raise SystemExit(f"{command}: exit code {process.returncode}\n{printed.decode()}")
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    folder = Path(sys.argv[1]).resolve().parent
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for command in COMMANDS:
        console.print(Text("$ ", style="green").append(command, style="bold"))
        console.print(Text.from_ansi(shown(command, folder)), highlight=False)
        console.print()
    # The reader's own font: an image in a README loads nothing.
    IMAGE.write_text(_FONT_FACES.sub("", console.export_svg(title="omni")).replace("Fira Code", "monospace"))


if __name__ == "__main__":
    main()
