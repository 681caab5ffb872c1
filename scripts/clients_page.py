"""Run real clients' scripts against `omni serve`, and write docs/clients.md.

    python scripts/clients_page.py [--write] [--json FILE] [CLIENT...]

Prints a line per check. Environments of the clients are made in `out/clients` (3 GB for all), SmolLM2 in `out`.
`--write` updates the page, which needs a run of all clients. Exit code 0: everything is as declared in
`tests/support/clients.py`; 1: it is not.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "clients.md"
SMOLLM2 = ROOT / "out" / "SmolLM2-135M-Instruct"


def main() -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    clients = importlib.import_module("support.clients")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CLIENT")
    parser.add_argument("--write", action="store_true", help="Update the page.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write all results to a file.")
    parser.add_argument("--kind", choices=clients.ALL_KINDS, help="Only against the server of this kind.")
    options = parser.parse_args()
    if options.write and (options.names or options.kind):
        parser.error("--write needs a run of all clients")
    rows = []
    for row in run_all(clients, options.names, [options.kind] if options.kind else list(clients.ALL_KINDS)):
        sys.stdout.write(f"{row.client:18} {row.kind:7} {row.feature:28} {'ok' if row.ok else row.detail}\n")
        sys.stdout.flush()
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=0) + "\n")
    if options.write:
        PAGE.write_text(importlib.import_module("support.clients_page").page(rows))
    return int(any(row.ok == ((row.client, row.feature) in clients.FAILS) for row in rows))


def run_all(clients: Any, names: list[str], kinds: list[str]) -> Iterator[Any]:
    from omni_cli.checkpoints.resolve import resolve_model
    from omni_cli.core.compat.libraries import prepare_libraries

    prepare_libraries()
    server_class = importlib.import_module("support.omni_server").OmniServer
    subprocess.run([sys.executable, str(ROOT / "scripts" / "smollm2.py"), str(SMOLLM2)], check=True)
    folders = {"text": SMOLLM2, "speech": Path(resolve_model("builtin:tiny-omni")), "image": Path()}
    with tempfile.TemporaryDirectory() as work:
        media = _media(Path(work))
        folders["transcription"] = importlib.import_module("support.tiny_models").whisper(Path(work, "whisper"))
        for kind in kinds:
            folder = Path(work, kind)
            folder.mkdir()
            omni = server_class(folder, *clients.server_arguments(kind, folders[kind]))
            try:
                server = clients.served(omni, kind, folders[kind])
                for client in clients.CLIENTS:
                    if kind in client.kinds and (not names or client.name in names):
                        yield from clients.run(client, server, *media)
            finally:
                omni.stop()


def _media(folder: Path) -> tuple[Path, Path]:
    """Write an image and half a second of sound."""
    import numpy as np

    from omni_cli.requests.encoding import encode_png, encode_wav

    image, sound = folder / "image.png", folder / "sound.wav"
    image.write_bytes(encode_png(np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)))
    sound.write_bytes(encode_wav(np.sin(np.arange(8000) / 6).astype(np.float32) / 2, 16_000))
    return image, sound


if __name__ == "__main__":
    sys.exit(main())
