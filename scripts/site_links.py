"""Hook of mkdocs: links to files outside docs/ become their text, and the build fails if such a file is missing."""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """mkdocs calls it with the text of each page."""
    docs = Path(config["docs_dir"]).resolve()

    def replace(match: re.Match[str]) -> str:
        target = (docs / page.file.src_uri).parent.joinpath(match[2]).resolve()
        if target.is_relative_to(docs):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: no such file: {match[2]}")
        return match[1]

    return LINK.sub(replace, markdown)
