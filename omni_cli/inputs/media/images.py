"""Decode images to RGB pixels."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from omni_cli.errors import InputError
from omni_cli.inputs.media.image_files import ImageFile, read_image_file

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MAX_IMAGE_PIXELS = 64 * 1024 * 1024

_FORMATS_HINT = "PNG, JPEG, WebP, GIF, BMP and TIFF can be read"


@dataclass(frozen=True)
class DecodedImage:
    """Pixels uint8 RGB (height, width, 3), or alpha (height, width); `notes` say what was changed or left out."""

    pixels: np.ndarray
    notes: tuple[str, ...] = ()


def decode_image(content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> DecodedImage:
    """Decode an image of at most `max_pixels`, checked before decoding; `name` identifies it in messages.

    It is turned by its EXIF orientation, and put on white where it is transparent, as in vLLM. Of several frames or
    pages the first is used. Raises `InputError` for an unusable image.
    """
    import numpy as np
    from PIL import Image

    file, image = _load(content, name, max_pixels)
    notes = _notes(file, name)
    image, alpha = _channels(file, image, name)
    image = _as(image, "RGB")
    if alpha is not None and alpha.getextrema() != (255, 255):
        notes.append(f"the transparency of the {name} was put on white")
        background = Image.new("RGB", image.size, "white")
        background.paste(image, mask=alpha)
        image = background
    return DecodedImage(_turned(np.asarray(image), file.orientation), tuple(notes))


def decode_alpha(content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> DecodedImage:
    """Decode only an image's transparency, like `decode_image`, to uint8 (height, width): 0 is fully transparent.

    Raises `InputError` for an image without any.
    """
    import numpy as np

    file, image = _load(content, name, max_pixels)
    _, alpha = _channels(file, image, name)
    if alpha is None:
        raise InputError(f"the {name} has no transparency")
    return DecodedImage(_turned(np.asarray(alpha), file.orientation), tuple(_notes(file, name)))


def _load(content: BinaryIO, name: str, max_pixels: int) -> tuple[ImageFile, Image.Image]:
    """Read the first image of a file, neither turned nor converted."""
    from PIL import Image, UnidentifiedImageError

    content.seek(0)
    file = read_image_file(content.read(), name)
    if file is None:
        raise InputError(f"cannot read the {name}: its format is not recognised", hint=_FORMATS_HINT)
    try:
        # Pillow warns about large images and odd metadata; sizes are checked here, the rest is irrelevant.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(file.content), formats=(file.format,))
            _check_size(image, name, max_pixels)
            image.load()
            return file, image
    except (InputError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise InputError(f"cannot read the {name}: its header is damaged, or of a kind that is not read") from error
    except Image.DecompressionBombError as error:
        raise _too_large(name, "too many", max_pixels) from error
    except Exception as error:
        # Decoders of broken bytes raise many things: OSError, SyntaxError, struct.error.
        raise InputError(f"cannot read the {name}: {error}") from error


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


def _notes(file: ImageFile, name: str) -> list[str]:
    return [f"the {name} has more than one frame or page; only the first is used"] if file.has_more else []


def _channels(file: ImageFile, image: Image.Image, name: str) -> tuple[Image.Image, Image.Image | None]:
    """Return an image as grey or RGB, and its alpha channel if it has one."""
    from PIL import ImageChops

    key = image.info.get("transparency")
    if image.mode in ("I", "F"):
        return _from_32_bits(file, image, name), None
    if image.mode.startswith("I;16"):
        return _from_16_bits(file, image, key)
    if image.mode in ("1", "L", "RGB"):
        alpha = None if key is None else _from_key(file, image, key)
        image = _as(image, "L") if image.mode == "1" else image
        return ImageChops.invert(image) if file.white_is_zero else image, alpha
    if image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        image = _as(image, "RGBA")
        return image.convert("RGB"), image.getchannel("A")
    if image.mode == "LAB":
        return _from_lab(image), None
    return image.convert("RGB"), None


def _as(image: Image.Image, mode: str) -> Image.Image:
    """Convert without a copy if there is nothing to convert: 64 Mi pixels are 256 MiB."""
    return image if image.mode == mode else image.convert(mode)


def _from_16_bits(file: ImageFile, image: Image.Image, key: int | None) -> tuple[Image.Image, Image.Image | None]:
    # Pillow's own conversion clips 16-bit grey at 255 instead of scaling it.
    import numpy as np
    from PIL import Image

    samples = np.asarray(image).astype(np.uint16)
    alpha = None if key is None else Image.fromarray((samples != key).astype(np.uint8) * np.uint8(255))
    grey = (samples >> (max(file.bits, 9) - 8)).astype(np.uint8)
    return Image.fromarray(255 - grey if file.white_is_zero else grey), alpha


def _from_32_bits(file: ImageFile, image: Image.Image, name: str) -> Image.Image:
    """Scale whole numbers without a sign from their whole range, and floating-point ones from 0 to 1."""
    import numpy as np
    from PIL import Image

    samples = np.asarray(image)
    if samples.dtype == np.int32 and file.is_signed:
        raise InputError(f"the {name} has samples with a sign, for which no black and white is defined")
    if samples.dtype == np.int32:
        grey = (samples.view(np.uint32) >> 24).astype(np.uint8)
    elif samples.min() >= 0 and samples.max() <= 1:
        grey = np.round(samples * 255).astype(np.uint8)
    else:
        raise InputError(f"the {name} has floating-point samples beyond 0 (black) and 1 (white)")
    return Image.fromarray(255 - grey if file.white_is_zero else grey)


def _from_lab(image: Image.Image) -> Image.Image:
    from PIL import ImageCms

    profiles = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    converted: Image.Image | None = ImageCms.profileToProfile(image, *profiles, outputMode="RGB")
    assert converted is not None
    return converted


def _from_key(file: ImageFile, image: Image.Image, key: int | tuple[int, int, int]) -> Image.Image:
    """Return the alpha channel where one colour, in the file's own bits, is transparent."""
    import numpy as np
    from PIL import Image

    if isinstance(key, int):
        # Pillow scales fewer bits than 8 to the whole range of 8; the key only of 1 bit.
        scaled = key if file.bits == 1 else key * (255 // (2**file.bits - 1))
        is_key = np.asarray(image.convert("L")) == scaled
    else:
        shift = 8 if file.bits == 16 else 0
        is_key = (np.asarray(image) == [colour >> shift for colour in key]).all(axis=2)
        if shift:
            is_key &= (_low_bytes(file) == [colour & 255 for colour in key]).all(axis=2)
    return Image.fromarray(np.where(is_key, np.uint8(0), np.uint8(255)))


def _low_bytes(file: ImageFile) -> np.ndarray:
    """Return the lower bytes of a PNG's 16-bit colours, of which Pillow keeps the upper ones."""
    import numpy as np
    from PIL import Image

    image = Image.open(io.BytesIO(file.content), formats=(file.format,))
    image.tile = [tile._replace(args="RGB;16L") for tile in image.tile]
    return np.asarray(image)


def _turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn and mirror pixels by EXIF's number, into memory of their own."""
    import numpy as np

    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.array(pixels[::rows, ::columns])
