"""Write plain data as YAML that `yaml_tree` reads back unchanged."""

from __future__ import annotations

import yaml

from omni_cli.config.yaml_tree import parse_scalar

# Line breaks in YAML, which a reader folds unless they are escaped.
_FOLDED = "\x85\u2028\u2029"


class _Dumper(yaml.SafeDumper):
    """Quotes a text only if YAML 1.1 or 1.2 would read something else; never writes anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: _Dumper, value: str) -> yaml.Node:
    style = None if parse_scalar(value) == value else "'"
    if any(character in value for character in _FOLDED):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _represent_float(dumper: _Dumper, value: float) -> yaml.Node:
    # Python's shortest form always has a dot or an exponent, and 1.2 reads both as a float.
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)


def to_yaml(data: object) -> str:
    """Dump `data` of mappings, lists and scalars as block-style YAML in its own order."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))
