"""Which function translates a transform object, by its exact type; and containers: Compose, Sequential, RandomApply and its like."""

from __future__ import annotations

import copy
import inspect
import sys
import types
from typing import Any, Iterator, Optional

from . import _image_processors, _job, _penstock, _timm_transforms, _torch_geometry, _torch_pixels  # noqa: F401  (they fill STEPS)
from ._torch_reading import STEPS, Attributes, Picture, Untranslatable, modules_own, plain, probability, step
from .errors import ConfigError, UsageError

_V1 = ("torchvision.transforms.transforms", "torchvision.transforms.autoaugment")


def name_of(step: Any) -> str:
    """Of the step, for messages: "Resize" of an object, "my_function()" of a function."""
    if hasattr(step, "__qualname__") or hasattr(step, "__name__"):
        return getattr(step, "__name__", "?") + ("" if isinstance(step, type) else "()")
    return type(step).__name__


def home_of(step: Any) -> tuple:
    """(module, name) of its class, where the class is what its module has under that name; else (module, "")."""
    kind = type(step)
    found = getattr(sys.modules.get(kind.__module__), kind.__name__, None)
    return kind.__module__, kind.__name__ if found is kind else ""


# Containers that run what is in them one after the other: (module, name).
_SEQUENCES = {("torchvision.transforms.transforms", "Compose"): "transforms",
              ("torchvision.transforms.v2._container", "Compose"): "transforms",
              ("torch.nn.modules.container", "Sequential"): "_modules"}


def is_hooked(step: Any) -> bool:
    return any(vars(step).get(name) for name in ("_forward_hooks", "_forward_pre_hooks")) if hasattr(step, "__dict__") else False


class _Preset:
    """What torchvision's own training programs wrap their transforms in."""

    def __call__(self, picture: Any) -> Any:
        return self.transforms(picture)  # type: ignore[attr-defined]


def forwards_to(step: Any) -> Any:
    """What an object of a program's own class calls, and nothing else, when it is called: its `__call__` has to be _Preset's, byte
    by byte of compiled code, but for names. None of anything else."""
    call = getattr(type(step), "__call__", None)
    code, wanted = getattr(call, "__code__", None), _Preset.__call__.__code__
    if type(step).__module__.partition(".")[0] in ("torch", "torchvision"):  # whose Lambda does so, too
        return None
    if code is None or type(step).__getattribute__ is not object.__getattribute__ or not hasattr(step, "__dict__"):
        return None
    like = all(getattr(code, part) == getattr(wanted, part)
               for part in ("co_code", "co_argcount", "co_kwonlyargcount", "co_freevars", "co_cellvars"))
    plain = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE) == 0
    return vars(step).get(code.co_names[0]) if like and plain and len(code.co_names) == 1 else None


def inside_of(step: Any) -> Optional[list]:
    """What a sequence runs; None of anything else, and of a sequence that something was hung on."""
    from . import transforms
    if isinstance(step, (list, tuple)):
        return list(step)
    if isinstance(step, transforms.Compose):
        return list(step.transforms)
    attribute = _SEQUENCES.get(home_of(step))
    if attribute is None:
        inner = forwards_to(step)
        return None if inner is None else [inner]
    if is_hooked(step):
        return None
    inside = getattr(step, attribute)
    more = set(vars(step)) - modules_own() - {attribute}
    return None if more else list(inside.values() if attribute == "_modules" else inside)


def flattened(step: Any, depth: int = 0) -> Iterator[Any]:
    inside = inside_of(step) if depth < 100 else None
    if inside is None:
        yield step
        return
    for one in inside:
        yield from flattened(one, depth + 1)


def library_complains_of(specs: list) -> str:
    """What the library would refuse in these steps; empty where it takes them."""
    job = {"splits": {"split": {"dataset": {"folder": "/"}, "pipeline": specs}}}
    try:
        _penstock.split_names(_job.text_of(job), is_text=True, overrides=[])
    except (ConfigError, UsageError) as problem:
        return problem.message.partition("error: ")[2].partition("\n")[0] or problem.message
    return ""


def specs_of(step: Any, at: Picture) -> list:
    """Job specs of one step of torchvision's, timm's or transformers', beside the conversions, which are `at`'s to keep."""
    module, name = home_of(step)
    if is_hooked(step):
        raise Untranslatable("hooks of the program's own hang on it")
    specs = _specs_of_class(step, module, name, at)
    if specs is None:
        raise Untranslatable(_foreign(step))
    if specs and (complaint := library_complains_of(specs)):
        raise Untranslatable(f"penstock refuses it: {complaint}")
    return specs


def _specs_of_class(step: Any, module: str, name: str, at: Picture) -> Optional[list]:
    """None of a class that nothing here knows."""
    v2 = module.startswith("torchvision.transforms.v2._")
    if (v2 or module in _V1) and name in STEPS:
        read = Attributes(step, v2)
        specs = STEPS[name](read, at)
        read.check_all_taken()
        return specs
    if (module, name) == ("torchvision.transforms._presets", "ImageClassification"):
        return _torch_geometry.image_classification(step, at)
    if (module, name) == ("torch.nn.modules.linear", "Identity"):
        return []
    if module.startswith("timm."):
        return _timm_transforms.specs_of(Attributes(step), module, at)
    if module.startswith("transformers."):
        return _image_processors.specs_of(step, at)
    return None


def _foreign(step: Any) -> str:
    module = str(getattr(step, "__module__", None) or type(step).__module__)
    if isinstance(step, type):
        return f"it is a class; write {step.__name__}(), with its parameters"
    if type(step).__name__ == "Lambda" and module.startswith("torchvision."):
        return f"it calls {name_of(getattr(step, 'lambd', step))}, Python code of the program's"
    for base in type(step).__mro__[1:]:
        if base.__module__.startswith("torchvision.transforms") and base.__name__ not in ("Transform", "_RandomApplyTransform"):
            return f"it is a class of {module}, made from torchvision's {base.__name__}; what it does otherwise, penstock cannot know"
    root = module.partition(".")[0]
    if root in ("albumentations", "kornia", "monai", "imgaug"):
        return f"penstock has no counterparts of {root}'s transforms"
    if root in ("torchvision", "timm", "transformers", "torch") and home_of(step)[1]:
        return f"penstock has no counterpart of {root}'s {type(step).__name__}"
    hint = "; a module's function that keeps the size of uint8 arrays stays among the loaders' steps as penstock.transforms.Python(it)" \
        if isinstance(step, types.FunctionType) else ""
    return f"it is Python code of {'the program' if module in ('__main__', '__mp_main__', 'builtins') else module}{hint}"


# ---- groups ----------------------------------------------------------------------------------------------------------
def _inside(step: Any, at: Picture, alone: bool) -> list:
    """Specs of what a group holds; `alone`: each in one spec, as RandomChoice and RandomOrder count them."""
    before = copy.copy(at)
    parts = inside_of(step)
    if parts is not None:
        specs = _together([_inside(one, at, False) for one in parts])
    elif hasattr(step, "to_spec"):
        specs = [step.to_spec()]
    else:
        try:
            specs = specs_of(step, at)
        except Untranslatable as problem:
            raise Untranslatable(f"of {name_of(step)} in it: {problem}") from None
    if at != before or any(name in ("ToDtype", "Normalize") for spec in specs for name in spec):
        raise Untranslatable(f"{name_of(step)} in it converts pictures, and penstock converts all of them, at the end")
    if not alone or len(specs) == 1:
        return specs
    # Several as one step, which always happens; and nothing as one that never does.
    return [{"RandomApply": {"transforms": specs, "p": 1.0}}] if specs else [{"RandomHorizontalFlip": {"p": 0.0}}]


def _together(lists: list) -> list:
    return [spec for one in lists for spec in one]


def _steps_inside(read: Attributes) -> list:
    inside = read.take("transforms")
    parts = list(inside) if hasattr(inside, "__iter__") else None
    if parts is None:
        raise Untranslatable(f"transforms={inside!r} is no list")
    return parts


@step("RandomApply")
def _random_apply(read: Attributes, at: Picture) -> list:
    spec = {**probability(read), "transforms": _together([_inside(one, at, False) for one in _steps_inside(read)])}
    return [{"RandomApply": spec}] if spec["transforms"] else []


@step("RandomChoice")
def _random_choice(read: Attributes, at: Picture) -> list:
    parts = _steps_inside(read)
    spec: dict = {"transforms": _together([_inside(one, at, True) for one in parts])}
    weights = plain(read.take("p"))
    if weights is not None and len(set(weights)) > 1:
        spec["p"] = read.numbers("p", weights, many=(len(parts),))
    return [{"RandomChoice": spec}]


@step("RandomOrder")
def _random_order(read: Attributes, at: Picture) -> list:
    return [{"RandomOrder": {"transforms": _together([_inside(one, at, True) for one in _steps_inside(read)])}}]
