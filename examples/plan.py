"""How many loaders a job needs, and what happens to it when one is lost: penstock.plan and penstock.simulate.

    penstock profile job.yaml -o profile.json
    examples/plan.py job.yaml cluster.yaml profile.json 12000img/s

cluster.yaml as in docs/guides/planning.md."""

import sys

import penstock


def main():
    job, cluster, profile, *target = sys.argv[1:]
    plan = penstock.plan(job, cluster, profile, *target)
    print(plan.sentence)
    if plan.remedy:
        print(f"  help: {plan.remedy}")
    best = plan.cheapest or plan.largest
    if best is None:
        return 1
    print(f"{best.loaders} loaders: {best.prediction.images_per_s.mean:.0f} images/s, {best.lost:.1%} lost to loading, "
          f"99 of 100 waits below {best.prediction.wait_ms['p99']:.1f} ms")
    # All machines of the cluster, with a loader that is killed after a second.
    lost = penstock.simulate(job, cluster, profile, what_ifs=["kill:0@1"])
    print(f"with loader 0 lost: {lost.images_per_s.mean:.0f} images/s, programs wait {lost.stalled.mean:.1%} of the time")
    return 0 if plan.reachable else 6


if __name__ == "__main__":
    sys.exit(main())
