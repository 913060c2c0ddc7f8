"""Two sets of generated grey images: letters of many scripts, and symbols.

A letter or symbol of a font of matplotlib is bent, made bolder or finer, and blurred, at random
from a fixed seed. As in scikit-learn's digits, the strokes are bright on a dark ground. The letters
are a large set to pretrain on before a task with digits or with symbols, so no letter looks like a
digit or like a symbol (glyphs.toml).
"""

import tomllib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

SIZE = 16  # pixels of an image
DISTORTION = 0.6  # how strongly images are bent
IMAGES = {"glyphs": 200, "symbols": 100}  # of each class
_DRAWN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LIKE_DIGITS = "".join(_DRAWN["like_digits"].split())
CLASSES = {"glyphs": "".join("".join(_DRAWN["letters"].values()).split())}
CLASSES["symbols"] = _DRAWN["symbols"]
_PLAIN = ("", "-Bold", "-Oblique", "-BoldOblique")
_FACES = [f"DejaVuSans{width}{face}" for width in ("", "Mono") for face in _PLAIN]
_FACES += [f"DejaVuSerif{face}" for face in ("", "-Bold", "-Italic", "-BoldItalic")]
_FACES += [f"STIXGeneral{face}" for face in ("", "Bol", "Italic", "BolIta")]
_SIDE = 32  # pixels of a drawing


@cache
def pictures(name: str) -> tuple[Tensor, Tensor]:
    """The set "glyphs" or "symbols", class after class; the same images in every call.

    Returns:
        Grey images, uint8 [examples, 1, SIZE, SIZE], and labels, int64 [examples].
    """
    names, count = CLASSES[name], IMAGES[name]
    random = torch.Generator().manual_seed(len(names))
    drawings, pixels = draw(names), []
    for place, faces in enumerate(drawings.amax((2, 3)).gt(0).float().T):
        chosen = faces.multinomial(count, replacement=True, generator=random)
        pixels.append(_distorted(drawings[chosen, place].unsqueeze(1), random))
    labels = torch.arange(len(names)).repeat_interleave(count)
    return torch.cat(pixels), labels


def draw(names: str) -> Tensor:
    """Each name in each face, from 0 to 1: [faces, names, 32, 32]; black if a face lacks it."""
    import matplotlib as mpl
    from matplotlib.ft2font import FT2Font
    from PIL import Image, ImageDraw, ImageFont, ImageOps
    from torchvision.transforms.functional import pil_to_tensor

    drawings = torch.zeros(len(_FACES), len(names), _SIDE, _SIDE)
    for face, file in enumerate(_FACES):
        path = str(Path(mpl.get_data_path(), "fonts", "ttf", f"{file}.ttf"))
        font = ImageFont.truetype(path, 2 * _SIDE, layout_engine=ImageFont.Layout.BASIC)
        has = FT2Font(path).get_charmap()
        for place, name in enumerate(names):
            if ord(name) in has:
                sheet = Image.new("L", (6 * _SIDE, 4 * _SIDE))
                ImageDraw.Draw(sheet).text((_SIDE, _SIDE), name, fill=255, font=font)
                drawn = ImageOps.contain(sheet.crop(sheet.getbbox()), (_SIDE - 6, _SIDE - 6))
                drawn = ImageOps.pad(ImageOps.expand(drawn, 3), (_SIDE, _SIDE))
                drawings[face, place] = pil_to_tensor(drawn)[0] / 255
    return drawings


def _distorted(drawings: Tensor, random: torch.Generator) -> Tensor:
    """Drawings [n, 1, 32, 32], each changed at random: uint8 [n, 1, SIZE, SIZE]."""
    n = len(drawings)
    turn, skew, wide, high, right, down = torch.randn(6, n, generator=random) * 0.1 * DISTORTION
    rows = ((1 + wide, skew - turn, right), (turn, 1 + high, down))
    matrices = torch.stack([torch.stack(row, 1) for row in rows], 1)
    where = functional.affine_grid(matrices, list(drawings.shape), align_corners=False)
    bend = torch.randn(n, 2, 4, 4, generator=random) * 0.07 * DISTORTION
    bend = functional.interpolate(bend, drawings.shape[2:], mode="bicubic", align_corners=False)
    where = where + bend.permute(0, 2, 3, 1)
    images = functional.grid_sample(drawings, where, align_corners=False)
    bold, blur = torch.rand(2, n, 1, 1, 1, generator=random)
    bolder = functional.max_pool2d(images, 3, 1, 1)
    finer = -functional.max_pool2d(-images, 3, 1, 1)
    images = images.lerp(bolder, (2 * bold - 1).clamp(0)).lerp(finer, (1 - 2 * bold).clamp(0) / 2)
    images = images.lerp(functional.avg_pool2d(images, 5, 1, 2), blur)
    images = functional.avg_pool2d(images, _SIDE // SIZE)
    brightest = images.amax((2, 3), keepdim=True)
    return (images * (255 / brightest)).round().to(torch.uint8)
