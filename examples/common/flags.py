"""Arguments that all programs here have, and what they mean to a job."""

import argparse

import penstock


def boolean(text: str) -> bool:
    """For `--flag False`: argparse's own type=bool takes every word for true."""
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")
    return known[text.lower()]


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return int(text)


def plainly(main, *words):
    """Runs it; what penstock says of the data or the job ends it as its own messages do, without Python's stack."""
    try:
        return main(*words)
    except penstock.errors.Error as problem:
        raise SystemExit(f"{type(problem).__name__}: {problem}") from None


def add_common(parser: argparse.ArgumentParser, *, epochs: int, output: str) -> None:
    parser.add_argument("--epochs", type=positive, default=epochs)
    parser.add_argument("--max-steps", type=positive, help="stop after so many steps of this run, with a checkpoint")
    parser.add_argument("--image-size", type=positive, help="side of the pictures, instead of the job's")
    parser.add_argument("--output", default=output, help="folder of checkpoints and logs")
    parser.add_argument("--resume", default="none", help="auto: from the last checkpoint in --output; none; or a file")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--executor", choices=("cpu", "gpu"), help="what decodes where this program loads for itself")
    parser.add_argument("--dist-url", default="env://", help="where several processes meet: env:// or tcp://HOST:PORT")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the job file, such as loader.threads=4")


def overrides_of(arguments, sizes=()):
    """Keys of the job that the arguments change. `sizes`: those that --image-size stands for."""
    words = [f"{key}=[{arguments.image_size},{arguments.image_size}]" for key in sizes] if arguments.image_size else []
    if arguments.executor:
        words.append(f"loader.executor={arguments.executor}")
    return words + arguments.set
