"""https://github.com/vllm-project/guidellm"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import MODEL, TOKENIZER, URL, check, main

# The command `guidellm`, where a torchvision may not fit torch.
GUIDELLM = """
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
ensure_torchvision_importable()
from guidellm.__main__ import cli
cli()
"""


def measure(request_format: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [
            *("--backend", f"kind=openai_http,target={URL},model={MODEL},request_format={request_format}"),
            *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=4"),
            *("--tokenizer", f"kind=hf_auto,model={TOKENIZER}"),
            *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"),
            *("--output", f"kind=json,path={report}", "--disable-console"),
        ]
        ended = subprocess.run([sys.executable, "-c", GUIDELLM, "run", *words], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-400:]
        (found,) = json.loads(report.read_text())["benchmarks"]
    totals = found["metrics"]["request_totals"]
    assert totals["successful"] == 4 and not totals["errored"], totals
    return str(totals)


@check("benchmark by chats")
def _() -> str:
    return measure("/v1/chat/completions")


@check("benchmark by completions")
def _() -> str:
    return measure("/v1/completions")


if __name__ == "__main__":
    main()
