"""penstock.plan and penstock.simulate: what the commands say, as dataclasses."""

import json
import os
import subprocess
import sys
import tempfile

import penstock
from jobs import PENSTOCK, demo_photos, run_tests, write_job
from leftovers import no_leftovers, run

work = tempfile.TemporaryDirectory(prefix="planning_test-")
job = write_job(work.name, demo_photos(), trainers=1, batch=4)
cluster = os.path.join(work.name, "cluster.yaml")
profile = os.path.join(work.name, "profile.json")
with open(cluster, "w") as file:
    file.write("nodes:\n  gpu: {count: 1, cores: 12, cores_for_training: 8, trainers: 4}\n"
               "  cpu: {count: 4, cores: 16, network_gbit: 25, price_per_hour: 1}\nprogram: {step_ms: 100}\n")
with no_leftovers() as env:
    assert run([PENSTOCK, "profile", job, "-o", profile, "--seconds", "1"], 60, env=env).returncode == 0
MANY = dict(samples=50_000, steps=30, seeds=4)


def test_a_plan_is_the_command_s():
    plan = penstock.plan(job, cluster, profile, **MANY)
    told = json.loads(subprocess.run([PENSTOCK, "plan", job, cluster, "--profile", profile, "--json", "--samples=50000", "--steps=30",
                                      "--seeds=4"], capture_output=True, text=True, timeout=60).stdout)
    assert plan.sentence == told["sentence"] and plan.reachable
    assert plan.cheapest.prediction.images_per_s.mean == told["cheapest"]["prediction"]["images_per_s"]["mean"]
    assert plan.cheapest.prediction.wait_ms["p99"] >= 0 and plan.largest is None
    assert len(plan.looked_at) == len(told["looked_at"])


def test_the_example():
    example = os.path.join(os.environ["PENSTOCK_SOURCE"], "examples", "plan.py")
    done = subprocess.run([sys.executable, example, job, cluster, profile, "50%"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 6) and "with loader 0 lost: " in done.stdout, done


def test_a_target_out_of_reach_is_no_error():
    plan = penstock.plan(job, cluster, profile, "1e9img/s", **MANY)
    assert not plan.reachable and plan.cheapest is None and "the bound is" in plan.sentence
    assert plan.remedy.startswith("shorten program.step_ms"), plan.remedy


def test_overrides_and_what_ifs():
    usual = penstock.simulate(job, cluster, profile, overrides={"nodes.cpu.count": 0, "program.step_ms": 1}, **MANY)
    slow = penstock.simulate(job, cluster, profile, overrides=["nodes.cpu.count=0", "program.step_ms=1"], what_ifs=["slow:0x0.2"], **MANY)
    assert slow.images_per_s.mean < usual.images_per_s.mean
    assert usual.failure is None and usual.naive_limit and 0 <= usual.stalled.mean <= 1 and 0 <= usual.at_barrier.mean <= 1


def test_mistakes_are_the_package_s_errors():
    for error, words in ((penstock.RunError, (job, cluster, "/nowhere")), (penstock.ConfigError, (job, "/nowhere", profile)),
                         (penstock.UsageError, (job, cluster, profile, "fast"))):
        try:
            penstock.plan(*words, **MANY)
        except error as problem:
            assert problem.message
        else:
            raise AssertionError(f"no {error.__name__} for {words}")


if __name__ == "__main__":
    run_tests(globals())
