"""A program's own class as the transform of torchvision's data set, in worker processes: workers run the program's file to find
it, as they do for a data set of the program's own. Without cloudpickle, which would send such a class by itself."""

from jobs import left_to_full, run_tests
from photos import TRAIN, script

PROGRAM = f"""
import sys
sys.modules["cloudpickle"] = None
import warnings
warnings.simplefilter("ignore")
import torch
from torchvision import datasets, transforms
import penstock


class Crops:
    def __init__(self):
        self.steps = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])

    def __call__(self, picture):
        whole = self.steps(picture)
        return [whole, whole[:, :8, :8]]


def main():
    data = datasets.ImageFolder({TRAIN!r}, Crops())
    with penstock.DataLoader(data, batch_size=16, num_workers=1) as loader:
        count = 0
        for at, ((whole, part), labels) in enumerate(loader):
            wanted = [data[index] for index in range(at * 16, at * 16 + 16)]
            assert torch.equal(whole, torch.stack([pictures[0] for pictures, _ in wanted])), at
            assert torch.equal(part, whole[:, :, :8, :8]), at
            assert labels.tolist() == [label for _, label in wanted], at
            count += len(labels)
        print(count, "samples compared")

"""


def test_a_transform_that_the_program_defines():
    done = script(PROGRAM + 'if __name__ == "__main__":\n    main()\n', timeout=120)
    assert done.returncode == 0 and done.stdout == "80 samples compared\n", done.stdout + done.stderr


@left_to_full("own_dataset_test, test_a_programs_own_class_sees_its_arguments_and_its_package: one whose data set is its own class")
def test_a_program_without_a_guard_is_told():
    """And ends: its workers do not start workers."""
    done = script(PROGRAM + "main()\n", timeout=120)
    assert done.returncode != 0 and "Crops is defined there" in done.stderr and "__name__" in done.stderr, done.stderr


if __name__ == "__main__":
    run_tests(globals())
