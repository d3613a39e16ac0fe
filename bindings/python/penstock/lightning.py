"""Lightning under `penstock run`: which rank this process is, told by penstock and not guessed from the launcher.

    trainer = Trainer(plugins=[penstock.lightning.Environment()], devices=…, num_nodes=…)
    trainer.fit(model, penstock.DataLoader("job.yaml", split="train"))

Loader ranks share the launcher's world, so what Lightning would read from MPI or Slurm counts them too. The loader needs no
adapter: Lightning takes any iterable of batches and saves whatever has a state_dict. Importing this module imports
Lightning.
"""

import os

try:
    from lightning.fabric.plugins.environments import ClusterEnvironment
except ImportError:
    from lightning_fabric.plugins.environments import ClusterEnvironment

from ._place import has_receiver
from .errors import UsageError

__all__ = ["Environment"]


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise UsageError(f"{name} is not set", "start the program with `penstock run`, `penstock serve` and torchrun, or "
                                               "leave this plugin out") from None


class Environment(ClusterEnvironment):
    """The trainers' ranks, as `penstock run` (or torchrun) sets them."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR", "127.0.0.1")

    @property
    def main_port(self) -> int:
        return _number("MASTER_PORT")

    @staticmethod
    def detect() -> bool:
        return has_receiver()

    def world_size(self) -> int:
        return _number("WORLD_SIZE")

    def set_world_size(self, size: int) -> None:
        """The job has said it: Lightning's own count is not needed."""

    def global_rank(self) -> int:
        return _number("RANK")

    def set_global_rank(self, rank: int) -> None:
        """See set_world_size."""

    def local_rank(self) -> int:
        return _number("LOCAL_RANK")

    def node_rank(self) -> int:
        return _number("RANK") // max(1, _number("LOCAL_WORLD_SIZE"))
