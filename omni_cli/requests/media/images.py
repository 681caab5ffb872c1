"""Decode images to RGB pixels."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from omni_cli.core.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

MAX_IMAGE_PIXELS = 64 * 1024 * 1024

# A subset of Pillow's plug-ins: some start other programs (EPS) or need a renderer.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_FORMATS_HINT = "PNG, JPEG, WebP, GIF, BMP and TIFF can be read"
# Tags of TIFF and EXIF.
_BITS, _PHOTOMETRIC, _ORIENTATION = 258, 262, 274
# An encoder writes about 10 scans; this is libtiff's limit.
MAX_SCANS = 100
# 0.7 s at most, if the scans hold next to nothing.
MAX_SCANNED_PIXELS = 2**30
# A marker that is neither a stuffed byte nor a restart within a scan.
_MARKER = re.compile(rb"\xff+([\x02-\xcf\xd9-\xfe])", re.DOTALL)
# Allowed at every size, so that most files are not searched for markers.
_FEW_SCANS = 12
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _END = 0xDA, 0xD9


def decode_image(
    content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Decode an image of at most `max_pixels`, checked before decoding; `name` identifies it in messages.

    Returns pixels, uint8 RGB (height, width, 3), and sentences that say what was changed or left out.

    It is turned by its EXIF orientation, and put on white where it is transparent, as in vLLM. Of several frames or
    pages the first is used. Raises `InputError` for an unusable image.
    """
    image, alpha, orientation, notes = _load(content, name, max_pixels)
    if alpha is not None and alpha.getextrema() != (255, 255):
        notes.append(f"the transparency of the {name} was put on white")
        image = on_white(image, alpha)
    return _turn(image, orientation), tuple(notes)


def decode_alpha(
    content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Decode only an image's transparency, like `decode_image`, to uint8 (height, width): 0 is fully transparent.

    Raises `InputError` for an image without any.
    """
    _, alpha, orientation, notes = _load(content, name, max_pixels)
    if alpha is None:
        raise InputError(f"the {name} has no transparency")
    return _turn(alpha, orientation), tuple(notes)


def on_white(image: Image.Image, alpha: Image.Image) -> Image.Image:
    """Put an image on white where `alpha` is less than 255, as vLLM does."""
    from PIL import Image

    background = Image.new("RGB", image.size, "white")
    background.paste(image, mask=alpha)
    return background


def _load(content: BinaryIO, name: str, max_pixels: int) -> tuple[Image.Image, Image.Image | None, int, list[str]]:
    """Decode the first image of a file: RGB, its alpha channel, EXIF's number for how to turn both, and notes."""
    from PIL import Image, UnidentifiedImageError

    content.seek(0)
    if content.read(3) == b"\xff\xd8\xff":
        content.seek(0)
        check_scans(content.read(), name)
    try:
        # Pillow warns about large images and odd metadata; sizes are checked here, the rest is irrelevant.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(content, formats=_FORMATS)
            _check_size(image, name, max_pixels)
            has_more = getattr(image, "is_animated", False)  # `n_frames` would walk through all pages
            orientation = _orientation(image)
            image.load()
            colours, alpha = _channels(content, image, name)
    except (InputError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise InputError(f"cannot read the {name}: its format is not recognised", hint=_FORMATS_HINT) from error
    except Image.DecompressionBombError as error:
        raise _too_large(name, "too many", max_pixels) from error
    except Exception as error:
        # Decoders of broken bytes raise many things: OSError, SyntaxError, struct.error.
        raise InputError(f"cannot read the {name}: {error}") from error
    notes = [f"the {name} has more than one frame or page; only the first is used"] if has_more else []
    return _as(colours, "RGB"), alpha, orientation, notes


def _orientation(image: Image.Image) -> int:
    if image.format == "TIFF":
        return 1  # Pillow turns it itself
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - metadata that cannot be read turn nothing
        return 1


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise InputError(f"the {name} has no pixels ({width}x{height})")
    if width * height > max_pixels:
        raise _too_large(name, f"{width}x{height}", max_pixels)


def _too_large(name: str, size: str, max_pixels: int) -> InputError:
    return InputError(
        f"the {name} has {size} pixels; the maximum is {max_pixels / 2**20:g} Mi pixels", hint="scale it down"
    )


def _channels(file: BinaryIO, image: Image.Image, name: str) -> tuple[Image.Image, Image.Image | None]:
    """Return an image as grey or RGB, and its alpha channel if it has one."""
    key = image.info.get("transparency")
    if image.mode in ("I", "F"):
        raise InputError(f"the {name} has samples of 32 bits", hint="save it with 8 or 16 bits per sample")
    if image.mode.startswith("I;16"):
        return _from_16_bits(file, image, key)
    if image.mode in ("1", "L", "RGB") and key is not None:
        return image, _from_key(file, image, key)
    if image.has_transparency_data:
        image = _as(image, "RGBA")
        return image.convert("RGB"), image.getchannel("A")
    return image, None


def _as(image: Image.Image, mode: str) -> Image.Image:
    """Convert without a copy if there is nothing to convert: 64 Mi pixels are 256 MiB."""
    return image if image.mode == mode else image.convert(mode)


def _tag(image: Any, tag: int, default: int) -> int:
    """Return a number of a TIFF's tag, or the first of several; the default for other files."""
    value = image.tag_v2.get(tag, default) if image.format == "TIFF" else default
    return int(value[0] if isinstance(value, tuple) else value)


def _bits(file: BinaryIO, image: Image.Image) -> int:
    """Return the bits per sample in the file, which Pillow may have scaled to 8."""
    if image.format == "PNG":
        file.seek(24)
        return file.read(1)[0]
    return _tag(image, _BITS, 8)


def _from_16_bits(file: BinaryIO, image: Image.Image, key: int | None) -> tuple[Image.Image, Image.Image | None]:
    # Pillow's own conversion clips 16-bit grey at 255 instead of scaling it, and leaves TIFFs in which 0 is white.
    from PIL import Image

    samples = np.asarray(image).astype(np.uint16)
    alpha = None if key is None else Image.fromarray((samples != key).astype(np.uint8) * np.uint8(255))
    grey = (samples >> (max(_bits(file, image), 9) - 8)).astype(np.uint8)
    return Image.fromarray(255 - grey if _tag(image, _PHOTOMETRIC, 1) == 0 else grey), alpha


def _from_key(file: BinaryIO, image: Image.Image, key: int | tuple[int, int, int]) -> Image.Image:
    """Return the alpha channel where one colour, in the file's own bits, is transparent."""
    from PIL import Image

    bits = _bits(file, image)
    if isinstance(key, int):
        # Pillow scales fewer bits than 8 to the whole range of 8; the key only of 1 bit.
        is_key = np.asarray(image.convert("L")) == (key if bits == 1 else key * (255 // (2**bits - 1)))
    else:
        shift = 8 if bits == 16 else 0
        is_key = (np.asarray(image) == [colour >> shift for colour in key]).all(axis=2)
        if shift:
            is_key &= (_low_bytes(file) == [colour & 255 for colour in key]).all(axis=2)
    return Image.fromarray(np.where(is_key, np.uint8(0), np.uint8(255)))


def _low_bytes(file: BinaryIO) -> np.ndarray:
    """Return the lower bytes of a PNG's 16-bit colours, of which Pillow keeps the upper ones."""
    from PIL import Image

    image = Image.open(file, formats=("PNG",))
    image.tile = [tile._replace(args="RGB;16L") for tile in image.tile]
    return np.asarray(image)


def _turn(image: Image.Image, orientation: int) -> np.ndarray:
    """Turn and mirror pixels by EXIF's number, into memory of their own."""
    pixels = np.asarray(image)
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.array(pixels[::rows, ::columns])


def check_scans(content: bytes, name: str) -> None:
    """Raise `InputError` for a JPEG of more scans than an encoder writes; `name` identifies it in messages."""
    if content.count(b"\xff\xda") <= _FEW_SCANS:
        return
    num_scans, num_pixels, position = 0, 0, 2
    while (match := _MARKER.search(content, position)) and (marker := match[1][0]) != _END:
        start = match.end()
        position = start + int.from_bytes(content[start : start + 2], "big")
        num_scans += marker == _SCAN
        if marker in _FRAMES:
            height, width = content[start + 3 : start + 5], content[start + 5 : start + 7]
            num_pixels = int.from_bytes(height, "big") * int.from_bytes(width, "big")
        if num_scans > MAX_SCANS or num_scans * num_pixels > MAX_SCANNED_PIXELS:
            raise InputError(
                f"the {name} has {num_scans} scans or more of {num_pixels:,} pixels; the maximum is {MAX_SCANS} scans "
                f"and {MAX_SCANNED_PIXELS >> 20} Mi pixels in all of them",
                hint="save it as a JPEG that is not progressive",
            )
