"""docs/dependencies.md names every part under the GPL or the LGPL that our extras install."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PAGE = (Path(__file__).parents[2] / "docs/dependencies.md").read_text()
TABLE = PAGE.partition("## Licences")[2].partition("\n\nThe extra")[0]
# Libraries in wheels by the names of their files, with the names in the table.
RECIPROCAL = {
    "x264": "x264", "x265": "x265", "avcodec": "FFmpeg", "avdevice": "FFmpeg", "avfilter": "FFmpeg",
    "avformat": "FFmpeg", "avutil": "FFmpeg", "swresample": "FFmpeg", "swscale": "FFmpeg", "mp3lame": "LAME",
    "gnutls": "GnuTLS", "gmp": "GMP", "nettle": "Nettle", "hogweed": "Nettle", "unistring": "libunistring",
    "asound": "alsa-lib", "sndfile_x86_64": "libsndfile", "quadmath": "libquadmath", "gfortran": "libgfortran",
    "gomp": "libgomp", "crypt": "libxcrypt", "zmq": "libzmq", "cudart": "NVIDIA", "nvjpeg": "NVIDIA",
}  # fmt: skip
# BSD, MIT, zlib, ISC and the like. FreeType is under its own licence or the GPL, as its user chooses.
PERMISSIVE = frozenset({
    "SvtAv1Enc", "Xau", "aom", "avif", "brotlicommon", "brotlidec", "crypto", "dav1d", "drm", "freetype", "harfbuzz",
    "jpeg", "lcms2", "lzma", "opencore", "openblasp", "openjp2", "opus", "pcre", "pcreposix", "png", "png16",
    "scipy_openblas64_", "sharpyuv", "sodium", "ssl", "tiff", "vpl", "vpx", "webp", "webpdemux", "webpmux", "xcb",
    "yajl", "z", "zstd",
})  # fmt: skip


def installed(extras: frozenset[str]) -> dict[str, Distribution]:
    """The distributions that omni-cli and these extras of it require, directly or not, as far as they are installed."""
    found: dict[str, Distribution] = {}
    pending, seen = [("omni-cli", extras)], set()
    while pending:
        entry = pending.pop()
        if entry in seen:
            continue
        seen.add(entry)
        try:
            found[entry[0]] = package = distribution(entry[0])
        except PackageNotFoundError:
            continue
        for text in package.requires or ():
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {"", *entry[1]}):
                name = re.sub(r"[-_.]+", "-", needed.name).lower()
                pending.append((name, frozenset(needed.extras)))
    return found


EXTRAS = frozenset(distribution("omni-cli").metadata.get_all("Provides-Extra") or ()) - {"dev"}
INSTALLED = installed(EXTRAS)


def is_named(package: str, part: str) -> bool:
    """True if the table names `part` in a row of `package`; a row without a package continues the one above."""
    packages = ""
    for row in TABLE.splitlines():
        if row.startswith("|"):
            first, *rest = row.strip("|").split("|")
            packages = first if first.strip() else packages
            if f"`{package}`" in packages and part in "|".join(rest):
                return True
    return False


def libraries(package: Distribution) -> Iterator[str]:
    """The names of the shared libraries in a wheel that are not its own."""
    for file in package.files or ():
        found = re.match(r"lib([A-Za-z0-9_]+?)(?:-[\w-]+)?\.(?:[0-9a-f]{8}\.)?so\b", file.name)
        if found and re.search(r"\.libs/|haproxy/bin/lib/|_soundfile_data/|torch/lib/libgomp", str(file)):
            yield found[1]


def licence(package: Distribution) -> str:
    metadata: Any = package.metadata
    classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License")]
    return "; ".join([metadata.get("License-Expression") or "", (metadata.get("License") or "")[:200], *classifiers])


def test_packages_under_other_licences_than_permissive_ones_are_named() -> None:
    stated = {name: licence(package) for name, package in INSTALLED.items()}
    other = re.compile(r"GPL|General Public|MPL|Mozilla|Proprietary|NonCommercial|CC-BY-NC")
    assert len(stated) > 50
    assert {name: text for name, text in stated.items() if other.search(text) and f"`{name}`" not in TABLE} == {}


def test_libraries_in_wheels_are_named_or_permissive() -> None:
    found = {(name, library) for name, package in INSTALLED.items() for library in libraries(package)}
    assert ("numpy", "quadmath") in found
    others = {(name, library) for name, library in found if library not in PERMISSIVE}
    assert {(name, library) for name, library in others if not is_named(name, RECIPROCAL.get(library, "?"))} == set()


def test_the_way_without_the_encoders_names_the_version_in_use() -> None:
    assert f"av=={distribution('av').version}`" in PAGE
