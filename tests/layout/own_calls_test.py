"""libpenstock calls its own functions by their place, never by a name that the program may define as well: a program compiled
without optimisation would have it run that program's copies of the standard library's templates (cmake/library.cmake)."""

import os
import shutil
import subprocess
import sys


def of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def main():
    if shutil.which("readelf") is None or shutil.which("nm") is None:
        print("SKIP: no readelf and nm (binutils)")
        return 77
    library = os.path.join(os.environ["PENSTOCK_BUILD"], "libpenstock.so")
    defined = {line.split()[-1].split("@")[0] for line in of("nm", "-D", "--defined-only", library)}
    called = [line.split()[4].split("@")[0] for line in of("readelf", "-rW", library) if "JUMP_SLO" in line]
    found = [name for name in called if name in defined]
    assert not found, f"{len(found)} own functions are called by name: {', '.join(found[:5])}"
    print(f"{len(called)} functions are called by name, none of {len(defined)} that the library defines")
    return 0 if called and defined else 1


if __name__ == "__main__":
    sys.exit(main())
