import io

import torch

from repro.data.image_rows import decode


def test_pixels_are_resized_and_cut_to_the_middle():
    from PIL import Image

    wide = Image.new("RGB", (40, 10), (255, 0, 0))
    wide.paste((0, 0, 255), (15, 0, 25, 10))
    buffer = io.BytesIO()
    wide.save(buffer, "PNG")
    square = decode(buffer.getvalue(), 10, "image")
    assert square.shape == (3, 10, 10)
    assert square.dtype == torch.uint8
    assert (square == torch.tensor([0, 0, 255], dtype=torch.uint8).view(3, 1, 1)).all()


def test_grey_and_palette_images_become_rgb():
    from PIL import Image

    for mode in ("L", "P", "RGBA", "1"):
        buffer = io.BytesIO()
        Image.new(mode, (6, 4)).save(buffer, "PNG")
        assert decode({"bytes": buffer.getvalue(), "path": None}, 4, "image").shape == (3, 4, 4)
