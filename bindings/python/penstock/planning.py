"""How many loaders a job needs, on which machines, before any are booked: `penstock plan` and `penstock simulate` as functions.

    plan = penstock.plan("job.yaml", "cluster.yaml", "profile.json", target="12000img/s")
    print(plan.sentence)
    if plan.cheapest:
        print(plan.cheapest.machines, plan.cheapest.kind, plan.cheapest.prediction.stalled.mean)

    p = penstock.simulate("job.yaml", "cluster.yaml", "profile.json", what_ifs=["kill:3@60"], overrides={"loader.threads": 8})

The profile is what `penstock profile` or `penstock run --profile` wrote. Nothing here needs a running job, a GPU or MPI.
"""

import dataclasses
import json
import os
from typing import List, Mapping, Optional, Sequence, Tuple, Union

from . import _penstock
from ._job import words_of

__all__ = ["Fleet", "Interval", "Plan", "Prediction", "plan", "simulate"]

_Path = Union[str, os.PathLike]
_Overrides = Union[str, Sequence[str], Mapping[str, object]]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean over simulations, and the half-width of its 95 % interval."""

    mean: float
    half_width: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a job on a fleet is expected to do."""

    images_per_s: Interval  # of all trainers
    stalled: Interval  # share of the programs' time in which they wait for batches
    at_barrier: Interval  # share in which they wait for each other after a step
    step_s: Interval
    wait_ms: Mapping[str, float]  # mean, p50, p90, p99, p999, most: of each next()
    loaders_busy: float  # share of the loaders' threads' time
    busiest_link: float  # share of the capacity of the busiest NIC or uplink
    naive_images_per_s: float  # the least of what each part can do alone
    naive_limit: str  # and which part that is
    failure: Optional[str]  # why the job cannot go on, where it cannot
    entered_by_hand: Tuple[str, ...] = ()  # keys of the cluster that no profile measured; of simulate() alone


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Loaders that are added to the machines that train."""

    name: str
    loaders_beside_trainers: int  # ranks on each machine that trains
    kind: str  # of machines that only load; "": none
    machines: int
    loaders: int
    threads: int
    price_per_hour: float
    lost: float  # share of what the programs would do if data were always there
    reaches: bool  # the target
    prediction: Prediction


@dataclasses.dataclass(frozen=True)
class Plan:
    """The answer: a sentence, and fleets that reach the target, where there are any."""

    sentence: str
    reachable: bool
    wanted_images_per_s: float
    smallest: Optional[Fleet]  # fewest threads
    cheapest: Optional[Fleet]
    safe: Optional[Fleet]  # reaches the target with one machine (beside trainers: one loader) fewer
    largest: Optional[Fleet]  # the fastest that was looked at, where the target is out of reach
    looked_at: Tuple[Fleet, ...]
    entered_by_hand: Tuple[str, ...]  # keys of the cluster that no profile measured
    remedy: str = ""  # where the target is out of reach: what to change


def _interval(told) -> Interval:
    return Interval(told["mean"], told["half_width_95"])


def _prediction(told) -> Prediction:
    return Prediction(_interval(told["images_per_s"]), _interval(told["stalled"]), _interval(told["at_barrier"]), _interval(told["step_s"]),
                      told["wait_ms"], told["loaders_busy"], told["busiest_link"], told["naive"]["images_per_s"], told["naive"]["limit"],
                      told.get("failure"), tuple(told.get("entered_by_hand", ())))


def _fleet(told) -> Optional[Fleet]:
    return None if told is None else Fleet(**{**told, "prediction": _prediction(told["prediction"])})


def _request(job, cluster, profile, overrides, split, seeds, samples, epochs, steps, barrier):
    names: List[str] = words_of(overrides)
    return _penstock.PlanRequest(os.fspath(job), os.fspath(cluster), os.fspath(profile), names, split or "", int(seeds),
                                 int(samples or 0), int(epochs), int(steps or 0), bool(barrier))


def plan(job: _Path, cluster: _Path, profile: _Path, target: Optional[str] = None, *, overrides: _Overrides = (),
         split: Optional[str] = None, seeds: int = 10, samples: Optional[int] = None, epochs: int = 1,
         steps: Optional[int] = None, barrier: bool = True) -> Plan:
    """The smallest, the cheapest and the safe fleet for a job.

    `target`: "12000img/s" of all trainers, or "1%", the share of the programs' pace that may be lost to loading (2 % where none is given).
    `overrides`: keys of the job or of the cluster. `samples`: of the data set; None: as many as where the profile comes from.

    Errors: ConfigError for job and cluster, RunError for a profile that cannot be read, UsageError for a target that is none. A
    target out of reach is no error: `reachable` is False, `sentence` says why, and `remedy` what to change."""
    told = json.loads(_penstock.plan_json(_request(job, cluster, profile, overrides, split, seeds, samples, epochs, steps, barrier),
                                          target or ""))
    fleets = {key: _fleet(told[key]) for key in ("smallest", "cheapest", "safe", "largest")}
    return Plan(told["sentence"], told["reachable"], told["wanted_images_per_s"], **fleets,
                looked_at=tuple(_fleet(one) for one in told["looked_at"]), entered_by_hand=tuple(told["entered_by_hand"]),
                remedy=told.get("remedy", ""))


def simulate(job: _Path, cluster: _Path, profile: _Path, *, what_ifs: Sequence[str] = (), overrides: _Overrides = (),
             split: Optional[str] = None, seeds: int = 10, samples: Optional[int] = None, epochs: int = 1,
             steps: Optional[int] = None, barrier: bool = True) -> Prediction:
    """What the job would do on the cluster as it is written down. `what_ifs`: as `penstock simulate --what-if` takes them."""
    return _prediction(json.loads(_penstock.simulate_json(
        _request(job, cluster, profile, overrides, split, seeds, samples, epochs, steps, barrier), list(what_ifs))))
