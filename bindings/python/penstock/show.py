"""penstock.show(batch): a look at what a batch holds."""

from __future__ import annotations

import math
from typing import Any, Optional, Sequence

from . import _job
from .errors import UsageError

__all__ = ["show"]

_GAP = 2  # pixels between pictures of a Pillow grid


def show(batch: Any, n: int = 16, *, mean: Optional[Sequence[float]] = None, std: Optional[Sequence[float]] = None,
         class_names: Optional[Sequence[str]] = None, columns: Optional[int] = None, bgr: bool = False) -> Any:
    """The first `n` pictures of a batch as a grid.

    Parameters
    ----------
    batch
        What a DataLoader gave, as list, tuple or dict; or images alone: [n, channels, height, width], or with views
        [n, views, channels, height, width] (FiveCrop); torch or NumPy.
    mean, std
        Those of Normalize, which is undone. Without them each picture's values are stretched from black to white, unless they
        are uint8, or within 0 and 1.
    class_names
        `loader.classes`: titles become names instead of label numbers.
    columns
        Columns of the grid; default: as square as it goes.
    bgr
        The job says `color: bgr`: the channels are shown as they were. `mean` and `std` are in the order of the batch.

    Returns
    -------
    A matplotlib Figure where matplotlib is installed (the last line of a notebook's cell shows it; `.savefig(path)`),
    else a Pillow image without titles (`.show()`, `.save(path)`).
    """
    n = _one_or_more("n", n)
    if columns is not None:
        columns = _one_or_more("columns", columns)
    if (mean is None) != (std is None):
        raise UsageError("show: mean and std come together")
    if class_names is not None and not hasattr(class_names, "__getitem__"):
        raise UsageError(f"show: class_names={class_names!r}", "give loader.classes, or a list of names")
    images, labels = _parts(batch)
    if images.ndim == 5:  # FiveCrop's and TenCrop's views stand side by side, one sample a row
        views = images.shape[1]
        n, columns = max(1, n // views), columns or views
        images = images[:n].reshape((-1, *images.shape[2:]))
        labels, n = None if labels is None else [label for label in labels[:n] for _ in range(views)], len(images)
    pictures = _to_uint8(images[:n], mean, std)
    if bgr:
        pictures = [picture[..., ::-1] for picture in pictures]
    titles = None if labels is None else [_title(int(label), class_names) for label in labels[:len(pictures)]]
    columns = min(columns or math.ceil(math.sqrt(len(pictures))), len(pictures))
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return _pillow_grid(pictures, columns)
    return _figure(Figure, pictures, titles, columns)


def _one_or_more(name, value):
    number = _job.integer(f"show: {name}", value)
    if number < 1:
        raise UsageError(f"show({name}={number}): it is 1 or more")
    return number


def _per_channel(name, values, channels):
    """float32 [channels], or of one number for all."""
    import numpy as np
    try:
        numbers = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"show: {name}={values!r} are no numbers", f"give Normalize's {name}") from None
    if numbers.ndim > 1 or numbers.size not in (1, channels):
        raise UsageError(f"show: {name}={values!r}, and the pictures have {channels} channels",
                         f"give Normalize's {name}")
    return numbers


def _parts(batch):
    """(images, labels or None): by shape, so that renamed fields and rebuilt batches serve too."""
    parts = list(batch.values()) if isinstance(batch, dict) else \
        list(batch) if isinstance(batch, (tuple, list)) else [batch]
    images = next((part for part in parts if getattr(part, "ndim", 0) in (4, 5)), None)
    if images is None or images.shape[-3] not in (1, 3) or not len(images):
        raise UsageError(f"show: no images in this {type(batch).__name__}",
                         "give a batch, or images of shape [n, 3, height, width]")
    labels = next((part for part in parts if getattr(part, "ndim", 0) == 1 and len(part) == len(images)), None)
    return images, labels


def _to_uint8(images, mean, std):
    """[n, height, width, channels] of bytes."""
    import numpy as np
    if hasattr(images, "detach"):  # torch, on whatever device; NumPy has no bfloat16
        images = images.detach().cpu()
        images = images.numpy() if str(images.dtype) == "torch.uint8" else images.float().numpy()
    pictures = np.moveaxis(np.asarray(images), 1, -1)
    if pictures.dtype == np.uint8 and mean is None:
        return pictures.copy()
    pictures = pictures.astype(np.float32)
    if mean is not None:
        channels = pictures.shape[-1]
        pictures = pictures * _per_channel("std", std, channels) + _per_channel("mean", mean, channels)
    elif pictures.min() < 0 or pictures.max() > 1:
        low = pictures.min(axis=(1, 2, 3), keepdims=True)
        span = pictures.max(axis=(1, 2, 3), keepdims=True) - low
        pictures = (pictures - low) / np.where(span > 0, span, 1)
    return np.clip(np.rint(pictures * 255), 0, 255).astype(np.uint8)


def _title(label, class_names):
    if label < 0:
        return "not valid"
    return str(class_names[label]) if class_names is not None and label < len(class_names) else str(label)


def _figure(figure_class, pictures, titles, columns):
    class Grid(figure_class):
        def _repr_png_(self):  # notebooks; a Figure shows itself only after pyplot was set up
            import io
            data = io.BytesIO()
            self.savefig(data, format="png")
            return data.getvalue()

    rows = math.ceil(len(pictures) / columns)
    figure = Grid(figsize=(1.6 * columns, 1.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for i, picture in enumerate(pictures):
        axes[i].imshow(picture.squeeze(-1) if picture.shape[-1] == 1 else picture,
                       cmap="gray" if picture.shape[-1] == 1 else None, vmin=0, vmax=255, interpolation="nearest")
        if titles is not None:
            axes[i].set_title(titles[i], fontsize=8)
    return figure


def _pillow_grid(pictures, columns):
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("show needs matplotlib or Pillow", "pip install matplotlib") from None
    rows = math.ceil(len(pictures) / columns)
    height, width = pictures.shape[1:3]
    grid = Image.new("RGB", (columns * (width + _GAP) - _GAP, rows * (height + _GAP) - _GAP), "white")
    for i, picture in enumerate(pictures):
        one = Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture)
        grid.paste(one, (i % columns * (width + _GAP), i // columns * (height + _GAP)))
    return grid
