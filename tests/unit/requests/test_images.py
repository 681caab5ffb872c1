"""Images of every kind, compared with pixels worked out from the file's own numbers."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from support.ffmpeg import ffmpeg
from support.image_bytes import pack, png, png_chunk, tiff

from omni_cli.core.errors import InputError
from omni_cli.requests.media.images import decode_alpha, decode_image

ON_WHITE = "the transparency of the image was put on white"
FIRST_ONLY = "the image has more than one frame or page; only the first is used"


class Decoded(NamedTuple):
    pixels: np.ndarray
    notes: tuple[str, ...]


def decode(content: bytes, **kwargs: int) -> Decoded:
    return Decoded(*decode_image(io.BytesIO(content), "image", **kwargs))


def alpha_of(content: bytes) -> np.ndarray:
    return decode_alpha(io.BytesIO(content), "image")[0]


def random(bits: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(bits).integers(0, 2**bits, shape)


def saved(image: Image.Image, name: str, **kwargs: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **kwargs)
    return file.getvalue()


def to_8_bits(values: np.ndarray, bits: int) -> np.ndarray:
    return (values >> 8 if bits == 16 else values * 255 // (2**bits - 1)).astype(np.uint8)


def on_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255
    return colours * share + 255 * (1 - share)


@pytest.mark.parametrize("name", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG"])
def test_every_format(name: str) -> None:
    pixels = np.zeros((6, 8, 3), np.uint8)
    pixels[:, 4:] = 255
    decoded = decode(saved(Image.fromarray(pixels), name))
    assert (decoded.pixels.dtype, decoded.pixels.shape, decoded.notes) == (np.uint8, (6, 8, 3), ())
    np.testing.assert_allclose(decoded.pixels[:, [0, 7]].astype(int), pixels[:, [0, 7]].astype(int), atol=12)
    with pytest.raises(InputError, match="the image has no transparency"):
        decode_alpha(io.BytesIO(saved(Image.fromarray(pixels), name)), "image")


# Transparency


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_a_grey_key_colour(bits: int) -> None:
    values = random(bits, 5, 9)
    key = int(values[2, 3])
    if bits == 16:  # neither byte alone is the key
        values[0, :2] = key ^ 1, key ^ 256
    content = png(9, bits, 0, [pack(row, bits) for row in values.tolist()], png_chunk(b"tRNS", struct.pack(">H", key)))
    decoded = decode(content)
    expected = np.where(values == key, 255, to_8_bits(values, bits))
    np.testing.assert_array_equal(decoded.pixels, np.repeat(expected[:, :, None], 3, axis=2))
    np.testing.assert_array_equal(alpha_of(content), np.where(values == key, 0, 255))
    assert decoded.notes == (ON_WHITE,)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_key_colour(bits: int, tmp_path: Path) -> None:
    values = random(bits, 5, 9, 3)
    key = values[2, 3].copy()
    if bits == 16:
        values[0, :2] = key
        values[0, 0, 1] ^= 1
        values[0, 1, 2] ^= 256
    body = struct.pack(">3H", *key.tolist())
    content = png(9, bits, 2, [pack(row.reshape(-1), bits) for row in values], png_chunk(b"tRNS", body))
    is_key = (values == key).all(axis=2)
    np.testing.assert_array_equal(decode(content).pixels, np.where(is_key[..., None], 255, to_8_bits(values, bits)))
    np.testing.assert_array_equal(alpha_of(content), np.where(is_key, 0, 255))
    (tmp_path / "a.png").write_bytes(content)
    theirs = np.frombuffer(ffmpeg("-i", tmp_path / "a.png", "-f", "rawvideo", "-pix_fmt", "rgba", "-"), np.uint8)
    np.testing.assert_array_equal(alpha_of(content), theirs.reshape(5, 9, 4)[:, :, 3])


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_palette_with_alpha(bits: int) -> None:
    values, colours, alpha = random(bits, 5, 9), random(8, 2**bits, 3), random(8, 2**bits, 2)[:, 0]
    chunks = [png_chunk(b"PLTE", bytes(colours.reshape(-1).tolist())), png_chunk(b"tRNS", bytes(alpha.tolist()))]
    content = png(9, bits, 3, [pack(row, bits) for row in values.tolist()], *chunks)
    np.testing.assert_array_equal(alpha_of(content), alpha[values])
    assert np.abs(decode(content).pixels - on_white(colours[values], alpha[values])).max() <= 0.5


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("colour_type", "channels"), [(4, 2), (6, 4)])
def test_an_alpha_channel(bits: int, colour_type: int, channels: int) -> None:
    values = random(bits, 5, 9, channels)
    content = png(9, bits, colour_type, [pack(row.reshape(-1), bits) for row in values])
    colours, alpha = to_8_bits(values[..., :-1], bits), to_8_bits(values[..., -1], bits)
    np.testing.assert_array_equal(alpha_of(content), alpha)
    assert np.abs(decode(content).pixels - on_white(colours, alpha)).max() <= 0.5


@pytest.mark.parametrize("name", ["PNG", "WEBP", "TIFF", "GIF"])
def test_transparency_of_formats(name: str) -> None:
    pixels = np.zeros((4, 6, 4), np.uint8)
    pixels[:, :3] = 200, 100, 0, 255
    decoded = decode(saved(Image.fromarray(pixels), name, **({"lossless": True} if name == "WEBP" else {})))
    assert (decoded.pixels[:, 3:] == 255).all() and (decoded.pixels[:, :3] == [200, 100, 0]).all()
    assert decoded.notes == (ON_WHITE,)


def test_an_alpha_channel_without_transparency_is_not_worth_a_note() -> None:
    assert decode(saved(Image.new("RGBA", (2, 2), (1, 2, 3, 255)), "PNG")).notes == ()


# TIFF


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("photometric", [0, 1])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_grey_tiff_with_black_or_white_as_zero(bits: int, photometric: int, order: str, tmp_path: Path) -> None:
    if (bits, photometric, order) == (16, 0, ">"):
        pytest.skip("Pillow does not read it")
    values = random(bits, 6, 16)
    rows = [np.asarray(row, order + "u2").tobytes() if bits == 16 else pack(row, bits) for row in values.tolist()]
    shown = 2**bits - 1 - values if photometric == 0 else values
    for is_big in (False, True) if order == "<" else (False,):  # Pillow reads no big-endian BigTIFF
        content = tiff((16, 6), bits, photometric, b"".join(rows), order=order, is_big=is_big)
        np.testing.assert_array_equal(decode(content).pixels[:, :, 0], to_8_bits(shown, bits))
    (tmp_path / "a.tiff").write_bytes(tiff((16, 6), bits, photometric, b"".join(rows), order=order))
    theirs = np.frombuffer(ffmpeg("-i", tmp_path / "a.tiff", "-f", "rawvideo", "-pix_fmt", "gray", "-"), np.uint8)
    assert np.abs(theirs.reshape(6, 16).astype(int) - to_8_bits(shown, bits)).max() <= 1


@pytest.mark.parametrize("photometric", [0, 1])
@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "group3", "group4"])
@pytest.mark.parametrize("mode", ["1", "L", "I;16"])
def test_compressed_tiff_with_white_as_zero(mode: str, compression: str, photometric: int) -> None:
    if compression.startswith("group") and mode != "1":
        pytest.skip("it is for black and white")
    values = random(16 if mode == "I;16" else 8, 16, 32)
    image = Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.uint8))
    image = image.convert("1") if mode == "1" else image
    grey = to_8_bits(values, 16) if mode == "I;16" else np.asarray(image.convert("L"))
    content = bytearray(saved(image, "TIFF", compression=compression))
    (start,) = struct.unpack_from("<I", content, 4)
    entry = next(at for at in range(start + 2, len(content), 12) if content[at : at + 4] == b"\x06\x01\x03\0")
    written = content[entry + 8]
    content[entry + 8] = photometric
    np.testing.assert_array_equal(
        decode(bytes(content)).pixels[:, :, 0], grey if written == photometric else 255 - grey
    )


@pytest.mark.parametrize("sample_format", [1, 2, 3])
def test_32_bits_are_refused(sample_format: int) -> None:
    with pytest.raises(InputError, match="the image has samples of 32 bits") as raised:
        decode(tiff((5, 4), 32, 1, bytes(80), sample_format=sample_format))
    assert raised.value.hint == "save it with 8 or 16 bits per sample"


def test_only_the_first_page_or_frame() -> None:
    pages = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    for name in ("TIFF", "GIF", "WEBP", "PNG"):
        decoded = decode(saved(pages[0], name, save_all=True, append_images=pages[1:]))
        np.testing.assert_allclose(decoded.pixels[0, 0].astype(int), [255, 0, 0], atol=2)
        assert decoded.notes == (FIRST_ONLY,)


# Orientation and colours


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int) -> None:
    pixels = random(8, 6, 9, 3).astype(np.uint8)
    turn = {
        1: lambda p: p,
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.transpose(1, 0, 2),
        6: lambda p: np.rot90(p, -1),
        7: lambda p: np.rot90(p, 2).transpose(1, 0, 2),
        8: lambda p: np.rot90(p),
    }[orientation]
    exif = Image.Exif()
    exif[0x112] = orientation
    formats: list[tuple[str, dict[str, Any]]] = [("PNG", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}),
               ("WEBP", {"lossless": True}),
               ("JPEG", {"quality": 100, "subsampling": 0})]  # fmt: skip
    for name, kwargs in formats:
        found = decode(saved(Image.fromarray(pixels), name, exif=exif, **kwargs)).pixels
        np.testing.assert_allclose(found.astype(int), turn(pixels).astype(int), atol=5 if name == "JPEG" else 0)
    clear = np.dstack([pixels, pixels[:, :, 0]])
    alpha = alpha_of(saved(Image.fromarray(clear), "PNG", exif=exif))
    np.testing.assert_array_equal(alpha, turn(pixels)[:, :, 0])


def test_cmyk(tmp_path: Path) -> None:
    inks = np.repeat(np.repeat(random(8, 8, 8, 4).astype(np.uint8), 8, axis=0), 8, axis=1)
    cyan, magenta, yellow, black = np.moveaxis(inks.astype(float), 2, 0)
    expected = np.stack([(255 - ink) * (255 - black) / 255 for ink in (cyan, magenta, yellow)], axis=2)
    image = Image.fromarray(inks, "CMYK")
    np.testing.assert_allclose(decode(saved(image, "TIFF")).pixels, expected, atol=1)
    marked = saved(image, "JPEG", quality=100, subsampling=0)
    start = marked.index(b"\xff\xee")
    unmarked = marked[:start] + marked[start + 2 + int.from_bytes(marked[start + 2 : start + 4], "big") :]
    for content in (marked, unmarked):  # without Adobe's marker, too, all viewers and ffmpeg take 255 for no ink
        np.testing.assert_allclose(decode(content).pixels, expected, atol=6)
        (tmp_path / "a.jpg").write_bytes(content)
        theirs = np.frombuffer(ffmpeg("-i", tmp_path / "a.jpg", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"), np.uint8)
        np.testing.assert_allclose(decode(content).pixels, theirs.reshape(64, 64, 3), atol=6)
    # YCCK, as Photoshop writes it: with Adobe's marker, and the fourth inverted.
    ycck = np.dstack([np.asarray(Image.fromarray(inks[:, :, :3]).convert("YCbCr")), 255 - inks[:, :, 3]])
    content = saved(Image.fromarray(255 - ycck, "CMYK"), "JPEG", quality=100, subsampling=0)
    start = content.index(b"Adobe")
    content = content[: start + 11] + b"\2" + content[start + 12 :]
    np.testing.assert_allclose(decode(content).pixels, expected, atol=8)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_every_mode_of_pillow(mode: str) -> None:
    image = Image.fromarray(random(8, 8, 8, 3).astype(np.uint8))
    image = image.convert("L").convert(mode) if mode == "I;16" else image.convert(mode)
    name = "PNG" if mode in ("P", "LA", "I;16") else "TIFF"
    expected = np.asarray(image.convert("RGB")) if mode != "I;16" else np.zeros((8, 8, 3))
    np.testing.assert_array_equal(decode(saved(image, name)).pixels, expected)


# Files that cannot be used


def test_unusable_images() -> None:
    noise = Image.fromarray(random(8, 64, 64, 3).astype(np.uint8))
    whole = saved(noise, "PNG")
    large = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)) + png_chunk(b"IDAT", b"")
    cases = {
        "not recognised": [b"", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"qoif"],
        "cannot read the image": [whole[: len(whole) // 2], whole[:20], saved(noise, "JPEG")[:400]],
        "9000x9000 pixels; the maximum is 64 Mi pixels": [b"\x89PNG\r\n\x1a\n" + large],
    }
    for message, contents in cases.items():
        for content in contents:
            with pytest.raises(InputError, match=message) as caught:
                decode(content)
            assert "0x7" not in caught.value.message
    with pytest.raises(InputError, match="64x64 pixels; the maximum is"):
        decode(whole, max_pixels=4095)


@pytest.mark.parametrize("name", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"])
def test_every_truncation_is_an_input_error(name: str) -> None:
    whole = saved(Image.fromarray(random(8, 24, 24, 3).astype(np.uint8)), name)
    # The last bytes of some formats add nothing.
    for length in range(0, len(whole) - 16, 29):
        try:
            decode(whole[:length])
        except InputError:
            continue
        assert name in ("GIF", "JPEG", "TIFF"), length
