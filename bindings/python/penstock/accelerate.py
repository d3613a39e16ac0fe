"""Accelerate: a loader on the accelerator's device, whose last batch gradient accumulation knows.

    accelerator = Accelerator(gradient_accumulation_steps=4)
    train = penstock.accelerate.prepare(accelerator, penstock.DataLoader("job.yaml", split="train"))
    model, optimizer = accelerator.prepare(model, optimizer)
    for images, labels in train:
        with accelerator.accumulate(model):
            ...

`accelerator.prepare(train)` returns a penstock.DataLoader as it is: nothing is sharded a second time, but batches stay on
the CPU, and the optimizer's last step of an epoch waits for the next epoch where the epoch is no multiple of the
accumulation. `prepare` here does what is missing. `accelerator.save_state()` then holds the loader's place, and
`load_state()` goes on in mid-epoch. Importing this module imports Accelerate.

Every rank has as many batches as the others, and its own samples: `dispatch_batches` and `split_batches` have no meaning
here and are refused, `even_batches` is always so. In an `eval` split padding has label -100 and `valid` false;
`gather_for_metrics` gives it too, since it stands at each rank's end and not at the end of them all.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState

from .data_loader import DataLoader
from .errors import UsageError

__all__ = ["prepare", "PreparedLoader"]


def prepare(accelerator: Any, loader: DataLoader) -> "PreparedLoader":
    """The loader, as `accelerator.prepare` would give a torch DataLoader back: iterate over what is returned.

    UsageError where the loader's place is not the accelerator's, or the accelerator would deal batches out itself.
    """
    if isinstance(loader, PreparedLoader):
        return accelerator.prepare_data_loader(loader)
    if not isinstance(loader, DataLoader):
        raise UsageError(f"penstock.accelerate.prepare takes a penstock.DataLoader, not a {type(loader).__name__}",
                         "accelerator.prepare is for torch's DataLoader; give what it returns to "
                         "penstock.wrap(…, prefetch=0, device=accelerator.device)")
    for name in ("dispatch_batches", "split_batches"):
        if getattr(accelerator, name, None):
            raise UsageError(f"Accelerator has {name}=True, and each rank of a penstock.DataLoader has batches of its own",
                             f"leave {name} out; the job's batch_size is that of one rank")
    ranks = loader.ranks_per_replica
    if loader.num_replicas * ranks != accelerator.num_processes or loader.rank != accelerator.process_index // ranks:
        raise UsageError(f"the loader is replica {loader.rank} of {loader.num_replicas} with {ranks} ranks each, and the "
                         f"accelerator process {accelerator.process_index} of {accelerator.num_processes}",
                         "make the loader without num_replicas and rank; without a GPU several processes need "
                         "Accelerator(cpu=True)")
    if accelerator.device_placement:
        loader._move_to(accelerator.device)
    return accelerator.prepare_data_loader(PreparedLoader(loader))


class PreparedLoader(DataLoaderStateMixin):
    """What `prepare` gives. Other names are looked up at the loader."""

    dataset = None                   # Accelerate looks for samplers of its own in it
    use_stateful_dataloader = True   # save_state() and load_state() ask for state_dict
    _is_accelerate_prepared = True   # prepare_data_loader() takes it as it is, and save_state() knows of it

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.gradient_state = GradientState()

    def __iter__(self) -> Iterator:
        steps = iter(self.loader)
        self.reset()
        self.gradient_state._add_dataloader(self)
        try:
            for batch in steps:
                self.end_of_dataloader = self.loader._cursor[1] == len(self.loader)  # of whatever a collate_fn made
                yield batch
        finally:
            self.gradient_state._remove_dataloader(self)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __repr__(self) -> str:
        return f"<penstock.accelerate.PreparedLoader of {self.loader!r}>"
