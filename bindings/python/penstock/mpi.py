"""Programs that are MPI ranks themselves, with mpi4py: some of their ranks load, the others train.

    from mpi4py import MPI
    import penstock.mpi

    with penstock.mpi.join(MPI.COMM_WORLD, "job.yaml") as rank:        # collective
        if rank.loads:
            rank.serve()                                               # until the trainers have left
        else:
            train = rank.DataLoader(split="train")
            for images, labels in train:
                ...
                rank.trainers.Allreduce(MPI.IN_PLACE, gradients)

On each node the local ranks from the job's roles.trainers on load; or `role` says it, on all ranks. Rank 0 trains. Streams and
hashes are those of `penstock run`, and of a DataLoader alone. There is no recovery: a rank that dies ends the job.
The library's thread calls MPI beside the program's, so MPI must run with MPI_THREAD_MULTIPLE, which is mpi4py's default. Its MPI must
be the one that penstock's MPI component was built on; with a wheel of launch/wheel.sh it is Open MPI 4.1 or 5. Start the program as
`mpirun … python -m mpi4py train.py`: an exception then ends all ranks, where others would wait in MPI for ever. Importing this module
imports mpi4py.
"""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional, Sequence, Union

from mpi4py import MPI

from . import _job, _penstock
from .data_loader import DataLoader
from .errors import UsageError

__all__ = ["Rank", "join"]


class _JoinedLoader(DataLoader):
    def __init__(self, native: Any, job: str, split: Optional[str], **options: Any) -> None:
        given = [name for name in ("num_replicas", "rank", "ranks_per_replica", "attach") if options.get(name) is not None]
        if given:
            raise UsageError(f"{given[0]}: a rank that joined a job has its place by that", f"leave {given[0]} out")
        self._joined = native
        super().__init__(job, split=split, **options)

    def _open(self, raw: bool) -> Any:
        # Whatever torch.distributed or the environment says of places.
        options = dict(self._options, num_replicas=None, rank=None, places_are_ranks=False)
        return _penstock.Loader(self._given.job, raw_images=raw, gpu_images=raw, receiver=self._joined, **options)


class Rank:
    """This process's part of the job; what join() gives. Leaves at the end of a `with`: badly, where that was left by an exception."""

    def __init__(self, native: Any, job: str, overrides: list) -> None:
        self._native = native
        self._job = job
        self._overrides = overrides
        self._left = False
        self.trainers = MPI.Comm.f2py(native.communicator)  #: the trainers' communicator; MPI.COMM_NULL on loaders
        self.report: Optional[dict] = None  #: trainer 0's, after leave(): the job's report

    @property
    def loads(self) -> bool:
        """Whether this rank loads, and calls serve(); else it trains, and makes DataLoaders."""
        return self._native.loads

    @property
    def number(self) -> int:
        """Trainer 0, 1, …, or loader 0, 1, …"""
        return self._native.number

    @property
    def num_trainers(self) -> int:
        return self._native.trainers

    def DataLoader(self, split: Optional[str] = None, **options: Any) -> DataLoader:
        """As penstock.DataLoader(job, split=split, …), fed by the ranks that load."""
        if self.loads:
            raise UsageError("this rank loads; only trainers have DataLoaders", "call serve() here")
        more = _job.words_of(options.pop("overrides", ()))
        return _JoinedLoader(self._native, self._job, split=split, overrides=[*self._overrides, *more], **options)

    def serve(self) -> None:
        """A loader's work, until the trainers have left."""
        if not self.loads:
            raise UsageError("serve(): this rank trains", "only ranks that load serve, once")
        self._left = True
        self._native.serve()

    def leave(self, well: bool = True) -> None:
        """A trainer's end, collective among them. `well=False`: the program could not do what it wanted to, and the job ends badly."""
        if self.loads:
            raise UsageError("leave(): this rank loads", "trainers leave, once; loaders serve()")
        if self._left:
            return
        self._left = True
        try:
            report = self._native.leave(well)
        finally:
            if self.trainers != MPI.COMM_NULL and not MPI.Is_finalized():
                self.trainers.Free()
        self.report = json.loads(report) if report else None

    def __enter__(self) -> "Rank":
        return self

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        if not self._left and not self.loads:
            self.leave(well=kind is None)


def join(comm: MPI.Comm, job: Union[str, os.PathLike], role: Optional[str] = None,
         overrides: Union[str, Sequence[str], Mapping[str, Any]] = ()) -> Rank:
    """Takes part in the job with all ranks of `comm`. `role`: "trainer" or "loader", on every rank or on none, in a job
    without roles.trainers; `overrides`: keys of the job, the same on every rank.

    UsageError without MPI_THREAD_MULTIPLE, and for a communicator without a loader; ConfigError where ranks read different jobs.
    """
    lines = _job.words_of(overrides)
    native = _penstock.join(comm.py2f(), os.fspath(job), lines, role)
    return Rank(native, native.job_file, lines)
