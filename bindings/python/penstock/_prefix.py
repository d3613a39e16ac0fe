"""A pipeline whose first steps are penstock's, and whose others are a program's own Python: both in one Python worker.

    begun = Begun.of(source, steps, rest)       # None where penstock cannot make the first steps for it
    picture, label = begun.sample(index, seed, epoch, occurrence)

The first steps are made by `penstock.Preprocessor` with the draws that the loaders would make, from the same encoded bytes; what
they have made is handed on as the PIL picture that torchvision would have there.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from . import datasets
from .errors import ConfigError, UsageError


def end_in_one_size(steps: Sequence[Any]) -> bool:
    """Of all pictures, whatever theirs are: what loaders need, and torch does not where all pictures have one."""
    try:
        Begun(None, steps, [])._preprocessor(0)
    except (ConfigError, UsageError) as problem:
        return "size depends on the image" not in str(problem)  # what else is wrong is said where the loader is made
    return True


_OF_PICTURES = ("limits.", "arithmetic=", "color=", "exif=")


class Begun:
    def __init__(self, source: Any, steps: Sequence[Any], rest: Sequence[Any], overrides: Sequence[str] = ()) -> None:
        """`overrides`: what the job says of pictures beside its steps."""
        self.source = source
        self.steps = list(steps)
        self.rest = list(rest)
        self.overrides = list(overrides)
        self._made: Any = None  # (seed, Preprocessor) of this process

    @staticmethod
    def of(source: Any, steps: Sequence[Any], rest: Sequence[Any], overrides: Sequence[str]) -> Optional["Begun"]:
        """`overrides`: of the whole job. None where there are no first steps, where they do not end in one size, and where pictures are no files."""
        if not steps or type(source) not in (datasets.ImageFolder, datasets.FileList):
            return None
        begun = Begun(source, steps, rest, [one for one in overrides if one.startswith(_OF_PICTURES)])
        try:
            begun._preprocessor(0)
        except (ConfigError, UsageError):
            return None
        return begun

    def programs_own(self) -> tuple:
        """(data set, transforms): for messages about what cannot be pickled."""
        return self.source, self.rest

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple:
        return self.sample(index, 0, 0, 0)

    def sample(self, index: int, seed: int, epoch: int, occurrence: int) -> tuple:
        """(what the last step returned, label). DatasetError where the picture cannot be used."""
        from PIL import Image
        encoded, _, _, label = self.source._listing().sample(index)
        pixels = self._preprocessor(seed)(encoded, index=index, epoch=epoch, occurrence=occurrence)
        picture: Any = Image.fromarray(pixels[0].transpose(1, 2, 0).copy())
        for step in self.rest:
            picture = step(picture)
        return picture, label

    def _preprocessor(self, seed: int) -> Any:
        from .preprocessor import Preprocessor
        if self._made is None or self._made[0] != seed:
            job = {"seed": seed, "splits": {"data": {"dataset": {"folder": "/"}, "mode": "train", "batch_size": 1,
                                                     "pipeline": self.steps}}}
            self._made = seed, Preprocessor(job, "data", dtype="uint8", output="numpy", threads=1, overrides=self.overrides)
        return self._made[1]

    def __getstate__(self) -> dict:
        return dict(self.__dict__, _made=None)
