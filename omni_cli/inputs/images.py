"""Decode image files to RGB pixels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from omni_cli.errors import InputError
from omni_cli.inputs.files import open_input

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MAX_IMAGE_PIXELS = 64 * 1024 * 1024

# A subset of Pillow's plug-ins: some start other programs (EPS) or need a renderer.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_FORMATS_HINT = "PNG, JPEG, WebP, GIF, BMP and TIFF can be read"

Warn = Callable[[str], None]


def load_image(path: Path, warn: Warn) -> np.ndarray:
    """Decode an image file.

    Returns uint8 RGB (height, width, 3), rotated by its EXIF orientation; transparency is composited onto
    white, as in vLLM. At most `MAX_IMAGE_PIXELS` pixels, checked before decoding. Of an animation the first
    frame is used and `warn` is called. Raises `InputError` for an unusable file.
    """
    with open_input(path, "image file") as file:
        return decode_image(file, f"image file `{path}`", warn)


def decode_image(file: BinaryIO, name: str, warn: Warn, max_pixels: int = MAX_IMAGE_PIXELS) -> np.ndarray:
    """Decode an image of at most `max_pixels` from an open file; `name` identifies it in messages."""
    return _decode(file, name, warn, max_pixels, _to_rgb)


def decode_alpha(file: BinaryIO, name: str, warn: Warn, max_pixels: int = MAX_IMAGE_PIXELS) -> np.ndarray:
    """Decode only an image's transparency, like `decode_image`, to uint8 (height, width): 0 is fully transparent.

    Raises `InputError` for an image without any.
    """
    return _decode(file, name, warn, max_pixels, _to_alpha)


def _decode(
    file: BinaryIO, name: str, warn: Warn, max_pixels: int, convert: Callable[[Image.Image, str], np.ndarray]
) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        # Pillow warns about large images and odd metadata; sizes are checked here, the rest is irrelevant.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file, formats=_FORMATS) as image:
                _check_size(image, name, max_pixels)
                num_frames = getattr(image, "n_frames", 1)
                pixels = convert(image, name)
    except InputError:
        raise
    except UnidentifiedImageError as error:
        raise InputError(f"cannot read the {name}: its format is not recognised", hint=_FORMATS_HINT) from error
    except Image.DecompressionBombError as error:
        raise _too_large(name, "too many", max_pixels) from error
    except Exception as error:
        # Decoders of broken bytes raise many things: OSError, SyntaxError, struct.error.
        raise InputError(f"cannot read the {name}: {error}") from error
    if num_frames > 1:
        warn(f"the {name} has {num_frames} frames; only the first is used")
    return pixels


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise InputError(f"the {name} has no pixels ({width}x{height})")
    if width * height > max_pixels:
        raise _too_large(name, f"{width}x{height}", max_pixels)


def _too_large(name: str, size: str, max_pixels: int) -> InputError:
    return InputError(
        f"the {name} has {size} pixels; the maximum is {max_pixels / 2**20:g} Mi pixels",
        hint="scale it down",
    )


def _to_rgb(image: Image.Image, name: str) -> np.ndarray:
    import numpy as np
    from PIL import Image, ImageOps

    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F"):
        raise InputError(f"the {name} has 32 bits per channel; supported: 8 and 16")
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips 16-bit grey at 255 instead of scaling it.
        grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.ascontiguousarray(np.repeat(grey[:, :, None], 3, axis=2))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"), dtype=np.uint8)


def _to_alpha(image: Image.Image, name: str) -> np.ndarray:
    import numpy as np
    from PIL import ImageOps

    image.load()
    if not image.has_transparency_data:
        raise InputError(f"the {name} has no transparency")
    return np.array(ImageOps.exif_transpose(image).convert("RGBA").getchannel("A"))
