"""bindings/torch and examples/classifier_cpp: installed, found by a project of its own, compiled against Debian's libtorch and
PyPI's (where tests/frameworks has made its environment), and run.

Batches are those of Python's penstock.DataLoader, byte for byte; losses those of examples/classifier/train_model.py.
Compiling takes a minute and a half a libtorch: only with PENSTOCK_FULL=1. An installed penstock in PENSTOCK_PREFIX is taken as it is.
"""

import array
import glob
import os
import re
import shutil
import subprocess
import sys
import time

from jobs import BUILD, FULL, demo_photos, run_tests, write_job
from leftovers import no_leftovers, run

DEBIAN = "/usr"
HEADER = "include/torch/csrc/api/include/torch/torch.h"


def cached(name):
    """The value of a variable in the build's CMake cache; '' where there is none."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as lines:
        return next((line.partition("=")[2].strip() for line in lines if line.startswith(name + ":")), "")


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


if not FULL:
    skip("only with PENSTOCK_FULL=1")
if not os.path.exists(os.path.join(DEBIAN, HEADER)):
    skip("libtorch's headers are not installed (apt-get install --no-install-recommends libtorch-dev)")
if cached("PENSTOCK_SANITIZE"):
    skip("built with a sanitizer, and libtorch is not")
if not (shutil.which("cmake") and shutil.which("ninja")):
    skip("cmake or ninja is not in PATH")

import torch  # noqa: E402
from programs import EXAMPLES, WORK, Program, losses  # noqa: E402

import penstock  # noqa: E402

SOURCE = os.environ["PENSTOCK_SOURCE"]
PHOTOS = demo_photos()  # 80 and 26 pictures: 5 and 2 batches of 16
JOB = write_job(WORK, PHOTOS, trainers=1)
PROJECT = """cmake_minimum_required(VERSION 3.22)
project(newcomer LANGUAGES CXX)
if(CALL_TORCH)
  find_package(Torch REQUIRED)
endif()
if(NOT COMPONENTS)
  set(COMPONENTS torch)
endif()
find_package(penstock REQUIRED COMPONENTS ${{COMPONENTS}})
message(STATUS "libtorch's root: ${{PENSTOCK_TORCH_FOUND_ROOT}}")
add_executable(torch_program {source}/tests/bindings/torch_program.cpp)
target_link_libraries(torch_program PRIVATE penstock::torch)
target_compile_options(torch_program PRIVATE -Wall -Wextra -Werror -O1)
"""


def job_without(name, *transforms, more=""):
    """The job, its training pipeline without these transforms and with more lines."""
    with open(JOB, encoding="utf-8") as file:
        head, val, tail = file.read().partition("  val:\n")
    for one in transforms:
        head = re.sub(rf"      - {one}: .*\n", "", head)
    path = os.path.join(WORK, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(head.replace("    sampler:", more + "    sampler:") + val + tail)
    return path


UINT8 = job_without("uint8.yaml", "ToDtype", "Normalize")
MIXED = job_without("mixed.yaml", more="      - MixUp: {alpha: 0.5, num_classes: 4}\n")


def must(words, timeout=60, env=None, **kwargs):
    done = run(words, timeout, env or os.environ, **kwargs)
    assert done.returncode == 0, f"{words} -> {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def installed():
    prefix = os.environ.get("PENSTOCK_PREFIX")
    if not prefix:
        prefix = os.path.join(WORK, "prefix")
        must(["cmake", "--install", BUILD, "--prefix", prefix])
    return prefix


PREFIX = installed()


def pip_root():
    """PyPI's torch in the environment of tests/frameworks, or None."""
    found = glob.glob(os.path.join(BUILD, "frameworks", "lib", "python3*", "site-packages", "torch"))
    return found[0] if found and os.path.exists(os.path.join(found[0], HEADER)) else None


def project_folder():
    folder = os.path.join(WORK, "newcomer")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write(PROJECT.format(source=SOURCE))
    return folder


def configured(name, source, *words):
    """The build folder, or what cmake said when it refused."""
    folder = os.path.join(WORK, name)
    done = run(["cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={PREFIX}", *words],
               120, os.environ)
    said = re.sub(r"\s+", " ", done.stdout + done.stderr)  # cmake breaks lines where it likes
    return (folder if done.returncode == 0 else None), said


def built(name, source, *words):
    folder, said = configured(name, source, *words)
    assert folder, said
    must(["cmake", "--build", folder, "-j1"], timeout=500)
    return folder


_programs = {}


def programs(root):
    """{"torch_program", "classifier"} built against the libtorch of this root."""
    if root not in _programs:
        name = "debian" if root == DEBIAN else "pip"
        words = [] if root == DEBIAN else [f"-DPENSTOCK_TORCH_ROOT={root}"]
        _programs[root] = {
            "torch_program": os.path.join(built(f"{name}-program", project_folder(), *words), "torch_program"),
            "classifier": os.path.join(built(f"{name}-classifier", os.path.join(EXAMPLES, "classifier_cpp"), *words), "classifier")}
    return _programs[root]


def roots():
    """What there is: Debian's, and PyPI's."""
    return [root for root in (DEBIAN, pip_root()) if root]


def fnv(data):
    """The hash of torch_program.cpp: FNV-1a over words of 8 bytes."""
    value = 0xcbf29ce484222325
    for word in array.array("Q", bytes(data) + bytes(-len(data) % 8)):
        value = (value ^ word) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def tensor_bytes(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


NAMES = {torch.uint8: "Byte", torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16", torch.int64: "Long"}


def lines_of_python(job, split, overrides, channels_last=None):
    lines = []
    with penstock.DataLoader(job, split=split, overrides=overrides, channels_last=channels_last) as loader:
        for _ in range(2):
            for batch in loader:
                images, labels = batch
                lines.append(" ".join(map(str, (
                    batch.epoch, batch.step, NAMES[images.dtype], NAMES[labels.dtype], labels.dim(), fnv(tensor_bytes(images)),
                    fnv(tensor_bytes(labels)), fnv(tensor_bytes(torch.as_tensor(batch.indices))), int(torch.as_tensor(batch.valid).sum())))))
    return lines


def asked(root, *words, timeout=100):
    with no_leftovers() as env:
        return must([programs(root)["torch_program"], *words], timeout, env, cwd=WORK)


def test_components_and_mixtures():
    """What find_package(penstock COMPONENTS torch) takes, and what it refuses."""
    folder, said = configured("found-debian", project_folder())
    assert folder and "libtorch's root: /usr" in said, said
    folder, said = configured("called-torch", project_folder(), "-DCALL_TORCH=ON")
    assert folder and "libtorch's root: /usr" in said, said
    folder, said = configured("unknown", project_folder(), "-DCOMPONENTS=frobnicate;torch")
    assert not folder and "it has no component 'frobnicate'; there are: c, torch" in said, said
    folder, said = configured("no-root", project_folder(), f"-DPENSTOCK_TORCH_ROOT={WORK}")
    assert not folder and "which has no include/torch/csrc/api/include/torch/torch.h, lib/libtorch.so" in said, said
    # A libtorch whose libraries are links to another's, as TorchConfig.cmake would have it.
    other = os.path.join(WORK, "other")
    os.makedirs(os.path.join(other, "lib"))
    os.symlink("/usr/include", os.path.join(other, "include"))
    for name in ("torch", "torch_cpu", "c10"):
        os.symlink(f"/usr/lib/x86_64-linux-gnu/lib{name}.so", os.path.join(other, "lib", f"lib{name}.so"))
    folder, said = configured("mixed-links", project_folder(), f"-DPENSTOCK_TORCH_ROOT={other}")
    assert not folder and "two libtorch are mixed" in said and f"-DPENSTOCK_TORCH_ROOT={other}" in said, said
    # One that was compiled with the strings from before C++11.
    old = os.path.join(WORK, "old")
    for below in ("include/torch/csrc/api/include/torch", "lib", "share/cmake/Torch"):
        os.makedirs(os.path.join(old, below))
    for name in (HEADER, "lib/libtorch.so", "lib/libtorch_cpu.so", "lib/libc10.so"):
        open(os.path.join(old, name), "w").close()
    with open(os.path.join(old, "share/cmake/Torch/TorchConfig.cmake"), "w") as file:
        file.write('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n')
    folder, said = configured("old-strings", project_folder(), f"-DPENSTOCK_TORCH_ROOT={old}")
    assert not folder and "_GLIBCXX_USE_CXX11_ABI=0, and libpenstock with 1" in said, said
    if pip_root():
        folder, said = configured("found-pip", project_folder(), f"-DPENSTOCK_TORCH_ROOT={pip_root()}")
        assert folder and f"libtorch's root: {os.path.realpath(pip_root())}" in said, said
        # Its own package file finds Debian's libraries for its own headers.
        folder, said = configured("mixed-package", project_folder(), f"-DTorch_DIR={pip_root()}/share/cmake/Torch", "-DCALL_TORCH=ON")
        assert not folder and "two libtorch are mixed" in said, said


def test_batches_are_those_of_python():
    for root in roots():
        for job, split, overrides, words in ((JOB, "train", [], []), (JOB, "val", [], []), (UINT8, "train", [], []),
                                             (JOB, "train", ["splits.train.pipeline.2.ToDtype.dtype=float16"], []),
                                             (JOB, "train", ["splits.train.pipeline.2.ToDtype.dtype=bfloat16"], []),
                                             (JOB, "train", [], ["--channels-last"]), (MIXED, "train", [], [])):
            said = asked(root, "hash", job, split, *words, *overrides).splitlines()
            expected = lines_of_python(job, split, overrides, channels_last=True if words else None)
            assert said == expected, (root, job, split, words, overrides, said, expected)
        kinds = {tuple(line.split()[2:5]) for job in (JOB, UINT8, MIXED) for line in asked(root, "hash", job, "train").splitlines()}
        assert kinds == {("Float", "Long", "1"), ("Byte", "Long", "1"), ("Float", "Float", "2")}, kinds


def test_tensors_are_the_batches_memory():
    for root in roots():
        assert re.fullmatch(r"20 batches at [3-6] addresses\n", asked(root, "zero_copy", JOB))
        assert asked(root, "outlive", JOB) == "outlived\n"


def test_keeping_too_many_is_named():
    for root in roots():
        said = asked(root, "hold", JOB)
        assert re.search(r"^warning: .*hold", said, re.M), said
        assert re.search(r"^kept [3-9], then kind 2: the program holds all batches of split 'train', and asks for another$", said, re.M), said
        assert "trainer.hold (2)" in said and "and 5 batches once they are dropped" in said, said


def test_libtorchs_own_loader_takes_the_dataset():
    for root in roots():
        said = asked(root, "adapter", JOB)
        assert "kind 2: batches of 5 samples were asked for, and split 'train' of the job makes batches of 16" in said, said
        assert "splits.train.batch_size=5" in said and "kind 3: the archive has no state of a penstock::torch::Dataset" in said, said


def test_states_go_on_in_mid_epoch():
    for root in roots():
        assert "a batch has no field 'depth'" in asked(root, "resume", JOB)


# torch makes this folder in TMPDIR otherwise, where the tests look for what a program leaves behind.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(WORK, "inductor"))


class Classifier(Program):
    """In Python, by this interpreter; or in C++, by this program."""

    def __init__(self, python=sys.executable, program=None):
        super().__init__("classifier", "train_model.py", os.path.join(EXAMPLES, "classifier", "job.yaml"), python)
        self.torchrun_words = self.words
        if program:
            self.words = [program]
            self.torchrun_words = [python, "--no-python", program]

    def output_words(self, folder):
        return "--set", f"output={folder}"


SETTINGS = os.path.join(WORK, "settings.yaml")
with open(SETTINGS, "w", encoding="utf-8") as settings_file:
    settings_file.write(f"""\
include: {EXAMPLES}/classifier/configs/base.yaml
output: {WORK}/unused
data: {{folder: {PHOTOS}/train, image_size: 64, batch_size: 16}}
stages:
  - {{name: head, epochs: 1, freeze: [conv1, bn1, "layer*"], optimizer: adamw, lr: 0.001}}
  - {{name: all, epochs: 2, lr: [0.01, 0.001]}}
""")


# Without a rate, which then falls as a cosine; the classes' layer alone.
COSINE = os.path.join(WORK, "cosine.yaml")
with open(SETTINGS, encoding="utf-8") as settings_file, open(COSINE, "w", encoding="utf-8") as cosine_file:
    cosine_file.write(settings_file.read().partition("stages:")[0] + """\
stages:
  - {name: head, epochs: 3, freeze: [conv1, bn1, "layer*"]}
""")


def close(said, expected):
    """The same lines, up to rounding of losses."""
    there, here = [re.findall(r"^(step \d+|epoch \d+ \(\w+\) :) loss (\S+)(.*)$", one, re.M) for one in (said, expected)]
    assert len(there) >= 2 and len(there) == len(here), (said, expected)
    for (name, loss, rest), (own_name, own_loss, own_rest) in zip(there, here):
        assert (name, rest) == (own_name, own_rest) and abs(float(loss) - float(own_loss)) <= 1e-4 * float(own_loss), (said, expected)


def test_the_classifier_is_that_of_python():
    import torchvision
    start = os.path.join(WORK, "start.pt")
    torch.manual_seed(77)
    torch.save(dict(torchvision.models.resnet18(num_classes=4).state_dict()), start)
    ordered = os.path.join(WORK, "ordered.pt")
    torch.save(torchvision.models.resnet18(num_classes=4).state_dict(), ordered)
    words = ("train", SETTINGS, "--max-steps", "6", "--set", f"network.checkpoint={start}")  # 4 of the first stage, 2 of the second
    of_two = ("train", SETTINGS, "--max-steps", "4", "--set", f"network.checkpoint={start}")  # 2 and 2
    place = [f"splits.{split}.dataset.folder={PHOTOS}/train" for split in ("train", "val")]
    for root in roots():
        program = Classifier(program=programs(root)["classifier"])
        # Only with the same torch: between 1.13 and 2.15 roundings differ, and a ReLU that flips makes 1e-3 of them after six steps.
        python = Classifier(sys.executable if root == DEBIAN else os.path.join(BUILD, "frameworks", "bin", "python"))
        out = os.path.join(WORK, "out-debian" if root == DEBIAN else "out-pip")
        said = program.alone("train", SETTINGS, "--max-steps", "6", "--weights", start, "--set", f"output={out}")
        close(said, python.alone(*words))
        assert "stage head: 1 epochs, 60 parameters frozen" in said and "stage all: 2 epochs, 0 parameters frozen" in said, said
        two = program.several(2, *of_two)
        close(two, python.several(2, *of_two))
        assert losses(two) == losses(program.launched(4, *of_two, overrides=place)), "fed by loader ranks"
        falling = ("train", COSINE, "--max-steps", "100", "--set", f"network.checkpoint={start}")
        close(program.alone(*falling), python.alone(*falling))
        # Slurm's variables say the places too, to the trainers and to what loads for them.
        os.environ["SLURM_STEP_ID"] = "0"
        of_slurm = program.several(2, *of_two, names=("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"))
        del os.environ["SLURM_STEP_ID"]
        assert losses(of_slurm) == losses(two), (of_slurm, two)
        if root != DEBIAN:  # torchrun of 1.13 does not run on this Python
            of_torchrun = Classifier(os.path.join(BUILD, "frameworks", "bin", "python"), programs(root)["classifier"])
            assert losses(of_torchrun.by_torchrun(2, *of_two)) == losses(two)
        of_three = ("train", SETTINGS, "--max-steps", "2", "--set", f"network.checkpoint={start}", "--set", "data.batch_size=4")
        close(program.several(3, *of_three), python.several(3, *of_three))
        # What ends one of them ends all, and soon.
        begun = time.monotonic()
        said = program.launched(4, "train", SETTINGS, "--set", "stages.0.lr=1e30", overrides=place, code=1)
        assert "the loss is " in said and time.monotonic() - begun < 25, said
        # Without a file the same seed draws the same first weights.
        close(program.alone("train", SETTINGS, "--max-steps", "4"), python.alone("train", SETTINGS, "--max-steps", "4"))
        # What it has trained is measured by the other.
        if root == DEBIAN and int(torch.__version__.split(".")[0]) < 2:
            said = python.alone("evaluate", SETTINGS, "--checkpoint", os.path.join(out, "weights.pt"))
            assert "of 16 pictures" in said, said
        for wrong, why in ((("--weights", ordered), "torch.save(dict(model.state_dict()), FILE)"), (("--weights", "nowhere.pt"), "nowhere.pt"),
                           (("--set", "data.batchsize=3"), "'data.batchsize' is not known; there are batch_size"),
                           (("--set", "stages.7.epochs=2"), "there is no such place"), (("--set", "network.name=vgg11"), "this program has no 'vgg11'"),
                           (("--frobnicate", "1"), "'--frobnicate' is not known")):
            done = subprocess.run([programs(root)["classifier"], "train", SETTINGS, *wrong], cwd=WORK, capture_output=True, text=True, timeout=60)
            assert done.returncode in (2, 3) and why in done.stderr, done


if __name__ == "__main__":
    if pip_root() is None:
        print(f"no PyPI torch in {BUILD}/frameworks: against Debian's libtorch alone")
    for one_root in roots():
        begun = time.monotonic()
        programs(one_root)
        print(f"built against the libtorch of {one_root}: {time.monotonic() - begun:.0f} s", flush=True)
    run_tests(globals())
