"""Curves for tensorboard, where it is installed; on one rank."""


class Curves:
    """`add("accuracy/test", 0.9, epoch)`; without tensorboard it says so once and keeps nothing."""

    def __init__(self, folder, place):
        self._writer = None
        if not place.first:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("tensorboard is not installed, so no curves are written (pip install tensorboard)", flush=True)
            return
        self._writer = SummaryWriter(folder)

    def add(self, name, value, step):
        if self._writer is not None:
            self._writer.add_scalar(name, value, step)

    def close(self):
        if self._writer is not None:
            self._writer.close()
