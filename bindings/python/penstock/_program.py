"""The `penstock` command of the installed package: the program that lies inside it."""

import os
import sys


def path() -> str:
    """Of the program: beside this file in a wheel; two folders up in a build folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    inside = os.path.join(here, "bin", "penstock")
    return inside if os.path.exists(inside) else os.path.join(here, "..", "..", "penstock")


def main() -> None:
    program = path()
    try:
        # exec, not a child: mpirun watches this process.
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as problem:
        sys.exit(f"penstock: cannot run '{program}': {problem.strerror}; reinstall the package")


if __name__ == "__main__":
    main()
