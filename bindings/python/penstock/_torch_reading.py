"""How attributes of torchvision's transforms are read, and what pictures are like at each place of its pipeline.

    @step("RandomHorizontalFlip", "RandomVerticalFlip")        # adds a function to STEPS: Attributes, Picture -> job specs
    def _flip(read, at):
        return [{read.name: probability(read)}]
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any, Callable, Optional

class Untranslatable(Exception):
    """Why a step cannot be translated: a sentence that goes on after the step's name."""


@dataclasses.dataclass
class Picture:
    """What torchvision would have at this place of the pipeline, and how its values follow from penstock's bytes."""

    kind: str = "PIL"  # "PIL", "Image" (torchvision's tv_tensors.Image) or "Tensor"
    dtype: str = "uint8"
    scaled: bool = False  # 0 to 255 became 0 to 1
    mean: Optional[list] = None  # of Normalize, three numbers
    std: Optional[list] = None
    finishing: list = dataclasses.field(default_factory=list)  # specs of what the conversions so far come to
    # The step that was translated last, for its note: it worked on tensors inside; what differs beside the tables' figures.
    on_tensors: bool = dataclasses.field(default=False, compare=False)
    remarks: list = dataclasses.field(default_factory=list, compare=False)

    @property
    def is_tensor(self) -> bool:
        return self.kind != "PIL"

    @property
    def is_float(self) -> bool:
        return self.dtype != "uint8"

    def cast(self, dtype: str, scale: bool) -> None:
        """ToDtype. From floats of 0 to 1 back to bytes (`scale`) is what torchvision computes as the bytes that they came of."""
        if dtype == self.dtype:
            return
        if dtype not in ("uint8", "float32", "float16", "bfloat16"):
            raise Untranslatable(f"penstock makes no {dtype} tensors")
        if dtype == "uint8":
            if not self.scaled or not scale or self.mean or self.dtype != "float32":
                raise Untranslatable("penstock makes no bytes of floats again")
            self.dtype, self.scaled, self.finishing = dtype, False, []
            return
        self.scaled = scale if not self.is_float else self.scaled
        self.finishing = self.finishing + [{"ToDtype": {"dtype": dtype, "scale": scale and not self.is_float}}]
        self.dtype = dtype

    def normalise(self, mean: Any, std: Any) -> None:
        """Each is a number, or a list for the channels."""
        mean, std = (value if isinstance(value, list) else [value] for value in (mean, std))
        if not self.is_float:
            raise Untranslatable("Normalize needs floats; torchvision refuses it, too")
        if self.mean:
            raise Untranslatable("penstock normalises once")
        if len(mean) not in (1, 3) or len(std) not in (1, 3):
            raise Untranslatable("its mean and std are not for three channels")
        self.finishing = self.finishing + [{"Normalize": {"mean": mean, "std": std}}]
        self.mean, self.std = (list(one) * (3 // len(one)) for one in (mean, std))

    def bytes_of(self, values: Any, what: str, nearest: bool = False) -> Any:
        """The colour of 0 to 255 that becomes these values by the conversions so far: one number, or three. `nearest`: where no
        byte becomes them, the one that comes nearest will do, and a remark says how near that is."""
        values = [0] if values is None else list(values) if isinstance(values, (list, tuple)) else [values]
        if len(values) not in (1, 3) or not all(_is_number(value) for value in values):
            raise Untranslatable(f"{what}={values} is no colour of three channels")
        out, away = [], 0.0
        for channel, value in enumerate(values * (3 // len(values))):
            step = (255 if self.scaled else 1) * (self.std[channel] if self.mean else 1)  # bytes for each 1 of the value
            value = value * self.std[channel] + self.mean[channel] if self.mean else value
            value = value * 255 if self.scaled else value
            out.append(round(value))
            if abs(value - out[-1]) > 1e-4 and nearest:
                away = max(away, abs(value - out[-1]) / step)
            elif abs(value - out[-1]) > 1e-4 or not 0 <= out[-1] <= 255:
                raise Untranslatable(f"{what}={values if len(values) > 1 else values[0]} is a byte of {value:g} here, "
                                     "and penstock's bytes are whole numbers of 0 to 255")
        if nearest and not all(0 <= one <= 255 for one in out):
            raise Untranslatable(f"{what}={values} is beyond penstock's bytes")
        if away:
            self.remarks.append(f"{what} is that of the nearest byte, {away:.2g} away at most")
        return out[0] if len(set(out)) == 1 else out

    def require_bytes(self, what: str = "it") -> None:
        """For what changes colours: only where penstock's bytes times a number are torchvision's values."""
        if self.mean:
            raise Untranslatable(f"{what} stands behind Normalize, and would work on normalised floats")
        if self.is_float and not (self.scaled and self.dtype == "float32"):
            raise Untranslatable(f"{what} would work on {self.dtype} values that are not 0 to 1")


class Attributes:
    """Of one transform object. What it has must all be taken, or be known to follow from what was: else a newer version, or the
    program, may have said something with it."""

    def __init__(self, step: Any, v2: bool = False) -> None:
        self.step, self.v2, self.name = step, v2, type(step).__name__
        modules = modules_own()
        self._left = {name for name in vars(step) if name not in modules}
        for store in ("_modules", "_parameters", "_buffers"):
            self._left |= set(vars(step).get(store) or ())

    def take(self, name: str, default: Any = ...) -> Any:
        self._left.discard(name)
        if default is not ... and not hasattr(self.step, name):
            return default
        try:
            return getattr(self.step, name)
        except AttributeError:
            raise Untranslatable(f"it has no attribute {name!r}, as the versions of it have that penstock knows") from None

    def skip(self, *names: str) -> None:
        """They say again what others say."""
        self._left -= set(names)

    def numbers(self, name: str, value: Any = ..., many: Optional[tuple] = None) -> Any:
        """A number, or a list of numbers, of which there are as many as one of `many` says."""
        value = plain(self.take(name) if value is ... else value)
        if _is_number(value) and (many is None or 1 in many):
            return value
        if many and isinstance(value, list) and len(value) in many and all(_is_number(one) for one in value):
            return value
        raise Untranslatable(f"{name}={value!r} is not what penstock knows of it")

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise Untranslatable(f"{name}={value!r} is neither True nor False")
        return value

    def check_all_taken(self) -> None:
        if self._left:
            raise Untranslatable(f"penstock does not know its attribute {sorted(self._left)[0]!r}")


def plain(value: Any) -> Any:
    """Lists and numbers for tuples, and for NumPy's and torch's arrays and numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != float("inf")


def modules_own() -> set:
    """Names of what every torch.nn.Module has."""
    torch = sys.modules.get("torch")
    return set(vars(torch.nn.Module())) if torch is not None else set()


# ---- what several transforms have in common --------------------------------------------------------------------------
STEPS: dict = {}  # name of torchvision's class: function(Attributes, Picture) -> job specs
PILLOWS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def step(*names: str) -> Callable:
    def add(function: Callable) -> Callable:
        STEPS.update((name, function) for name in names)
        return function
    return add


def size_of(read: Attributes, name: str = "size") -> list:
    size = read.numbers(name, many=(1, 2))
    return size if isinstance(size, list) else [size]


def filter_name(value: Any) -> str:
    """Of an InterpolationMode, its name, or Pillow's number."""
    value = getattr(value, "value", value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = PILLOWS.get(int(value), value)
    if not isinstance(value, str):
        raise Untranslatable(f"interpolation={value!r} is no filter that penstock knows")
    return value


def resampling(read: Attributes, at: Picture) -> dict:
    """Filter of a resize. Pillow's antialias whatever torchvision is told; on tensors it matters, and so does which pixel `nearest`
    takes: torch's floor(x * scale), where Pillow has floor((x + 0.5) * scale)."""
    name = filter_name(read.take("interpolation"))
    antialias = read.take("antialias", None)
    if at.is_tensor:
        if name == "nearest":
            raise Untranslatable("nearest on tensors takes other pixels than Pillow's, which penstock takes; nearest-exact does not")
        if name in ("bilinear", "bicubic", "lanczos") and antialias is not True:
            raise Untranslatable(f"antialias={antialias!r} resizes tensors without antialiasing; penstock antialiases, as Pillow")
        if name not in ("bilinear", "bicubic", "lanczos", "nearest-exact"):
            raise Untranslatable(f"interpolation={name!r} is not for tensors; torchvision refuses it, too")
    return {"interpolation": name}


def warp_filter(read: Attributes, at: Picture) -> dict:
    name = filter_name(read.take("interpolation"))
    if name not in ("nearest", "bilinear", *(() if at.is_tensor else ("bicubic",))):
        raise Untranslatable(f"interpolation={name!r} is not for {'tensors' if at.is_tensor else 'it'}; torchvision refuses it, too")
    return {"interpolation": name}


def fill_of(read: Attributes, at: Picture) -> dict:
    """v2 keeps fills by type of what is filled; v1 has one for all."""
    if not read.v2:
        return {"fill": at.bytes_of(plain(read.take("fill")), "fill")}
    read.skip("fill")
    fills = read.take("_fill")
    by_name = {kind if isinstance(kind, str) else f"{kind.__module__.partition('.')[0]}.{kind.__name__}": plain(value)
               for kind, value in fills.items()}
    wanted = {"PIL": "PIL.Image", "Image": "torchvision.Image", "Tensor": "torch.Tensor"}[at.kind]
    if wanted not in by_name and "others" not in by_name:
        raise Untranslatable(f"fill={fills!r} says nothing of {at.kind} pictures")
    spec = {"fill": at.bytes_of(by_name.get(wanted, by_name.get("others")), "fill")}
    mask = by_name.get("torchvision.Mask", by_name.get("others"))
    if isinstance(mask, list):
        mask = mask[0] if len(mask) == 1 else None  # a colour means nothing among class ids
    return spec if mask is None or set(by_name) == {"others"} else {**spec, "mask_fill": mask}


def probability(read: Attributes) -> dict:
    return {"p": read.numbers("p")}


def range_of(read: Attributes, name: str) -> list:
    """A range whose logarithm v2 keeps, too, and draws from."""
    values = read.numbers(name, many=(2,))
    log = plain(read.take("_log_ratio", None)) if name == "ratio" else None
    if log is not None and any(abs(kept - math.log(value)) > 1e-5 for kept, value in zip(log, values) if value > 0):
        raise Untranslatable("its ratio was changed after it was made")
    return values
