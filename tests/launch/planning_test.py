"""The planner's commands as a user meets them: measure, simulate, plan, sweep, explain, validate; exit codes and complaints."""

import json
import os
import subprocess
import tempfile

from jobs import PENSTOCK, demo_photos, run_tests, write_job
from leftovers import no_leftovers, run

work = tempfile.TemporaryDirectory(prefix="planning_test-")
job = write_job(work.name, demo_photos(), trainers=1)
cluster = os.path.join(work.name, "cluster.yaml")
profile = os.path.join(work.name, "profile.json")
with open(cluster, "w") as file:
    file.write("""\
nodes:
  gpu: {count: 2, cores: 16, cores_for_training: 8, trainers: 4, network_gbit: 50, price_per_hour: 20}
  cpu: {count: 8, cores: 16, network_gbit: 25, price_per_hour: 1}
program: {step_ms: 100, step_spread: 0.05}
""")
MANY = "--samples=100000", "--steps=30", "--seeds=4"


def penstock(*words, timeout=60):
    return run([PENSTOCK, *words], timeout)


def simulated(*words):
    result = penstock("simulate", job, cluster, "--profile", profile, "--json", *MANY, *words)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_profile_is_measured():
    with no_leftovers() as env:
        result = run([PENSTOCK, "profile", job, "-o", profile, "--seconds", "3"], 60, env=env)
    assert result.returncode == 0 and "ms of a thread each" in result.stdout, result
    with open(profile) as file:
        told = json.load(file)
    assert told["sample_ns"]["count"] > 50 and told["made_by"] == "penstock profile" and len(told["hash"]) == 32, told
    assert told["payload_bytes"] > 0 and told["receiver_ns_per_byte"] > 0, told


def test_a_whole_run_is_recorded():
    mine = os.path.join(work.name, "run.json")
    with no_leftovers() as env:
        # 80 photos are no whole number of such batches.
        result = run([PENSTOCK, "run", job, "--profile", mine, "--quiet", "splits.train.batch_size=48"], 60, env=env)
    assert result.returncode == 0, result.stderr
    with open(mine) as file:
        told = json.load(file)
    assert told["dataset_size"] == 80, told["dataset_size"]
    assert told["step_ns"]["count"] == 0  # what takes batches where no program is named is no training
    assert told["sample_ns"]["count"] > 0 and told["made_by"] == "penstock run --profile", told
    assert penstock("simulate", job, cluster, "--profile", mine, *MANY).returncode == 0


def test_a_job_is_simulated_and_a_seed_gives_one_log():
    one, two = simulated(), simulated()
    assert one["prediction"] == two["prediction"]
    assert one["fleet"] == {"nodes": 10, "trainers": 8, "loaders": one["fleet"]["loaders"], "threads": one["fleet"]["threads"]}
    assert one["profile"]["hash"] and one["entered_by_hand"] == ["program.step_ms"], one
    text = penstock("simulate", job, cluster, "--profile", profile, *MANY)
    assert text.stdout.splitlines()[0].split()[1] == "images/s", text.stdout
    assert "they wait for each other after a step " in text.stdout, text.stdout
    assert 0 <= one["prediction"]["stalled"]["mean"] + one["prediction"]["at_barrier"]["mean"] <= 1, one["prediction"]
    alone = penstock("simulate", job, cluster, "--profile", profile, "--no-barrier", *MANY)
    assert alone.returncode == 0 and "each other" not in alone.stdout, alone
    slower = simulated("program.step_ms=300")
    assert slower["prediction"]["images_per_s"]["mean"] < one["prediction"]["images_per_s"]["mean"]


def test_an_index_says_how_large_each_sample_is():
    index = os.path.join(work.name, "train.index")
    with no_leftovers() as env:
        indexed = f"splits.train.dataset.index={index}"
        assert run([PENSTOCK, "index", job, "--split", "train", indexed], 60, env=env).returncode == 0
    told = json.loads(penstock("simulate", job, cluster, "--profile", profile, "--json", "--seeds=1", "--steps=1", indexed,
                               "splits.train.batch_size=2").stdout)
    with open(profile) as file:
        assert told["samples"] == json.load(file)["dataset_size"], told
    with open(index, "r+b") as file:
        file.truncate(100)
    cut = penstock("simulate", job, cluster, "--profile", profile, indexed)
    assert cut.returncode == 4 and f"cannot read the index '{index}': " in cut.stderr, cut


def test_what_ifs():
    def rate(*words):
        return simulated("program.step_ms=1", *words)["prediction"]["images_per_s"]["mean"]

    at_home = ["nodes.cpu.count=0"]
    for words, whats in ((at_home, ("slow:0x0.2", "kill:1@0.05", "tail:x50")),
                         (["nodes.gpu.loaders=0"], ("nic:0x0.001",))):  # with loaders at home hardly anything needs the network
        usual = rate(*words)
        for what in whats:
            assert rate(*words, "--what-if", what) < usual, what
    said = penstock("simulate", job, cluster, "--profile", profile, "--what-if", "burn:1")
    assert said.returncode == 2 and "'burn:1' is no what-if" in said.stderr and "help: " in said.stderr, said


def test_a_plan():
    result = penstock("plan", job, cluster, "--profile", profile, *MANY)
    assert result.returncode == 0 and ("enough: " in result.stdout.splitlines()[0]), result
    told = json.loads(penstock("plan", job, cluster, "--profile", profile, "--json", *MANY).stdout)
    assert told["entered_by_hand"] == ["program.step_ms"] and "not measured: program.step_ms" in result.stdout, result
    assert told["reachable"] and told["cheapest"]["reaches"] and told["sentence"] == result.stdout.splitlines()[0], told


def test_a_target_out_of_reach_is_an_exit_code_of_its_own():
    result = penstock("plan", job, cluster, "--profile", profile, "--target", "100000000img/s", *MANY)
    assert result.returncode == 6, result
    assert result.stdout.startswith("No fleet of this cluster reaches 100000000 images/s; the bound is "), result.stdout
    remedy = result.stdout.splitlines()[1]
    assert remedy.startswith("  help: shorten program.step_ms, or give the job more trainers, or ask for less: --target "), result.stdout
    lower = remedy.split()[-1]
    assert penstock("plan", job, cluster, "--profile", profile, "--target", lower, *MANY).returncode == 0, lower
    assert penstock("plan", job, cluster, "--profile", profile, "--target", "fast").returncode == 2


def test_a_sweep():
    words = ["sweep", job, cluster, "--profile", profile, *MANY, "loader.threads=1..4x2", "splits.train.batch_size=8,16"]
    result = penstock(*words)
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and len(lines) == 7 and lines[0].startswith("loader.threads\tsplits.train.batch_size\t"), result
    told = json.loads(penstock(*words, "--json").stdout)
    points = told["points"]
    assert told["entered_by_hand"] == ["program.step_ms"] and "entered by hand, and not measured: program.step_ms" in result.stderr, told
    assert [point["keys"]["loader.threads"] for point in points] == ["1", "1", "2", "2", "4", "4"]
    some = penstock("sweep", job, cluster, "--profile", profile, *MANY, "splits.train.batch_size=8,16000")
    assert some.returncode == 1 and len(some.stdout.splitlines()) == 3 and "cannot run on this cluster" in some.stdout, some
    for bad, code in (("loader.threads=4..1", 2), ("loader.threads=2", 2), ("loader.thread=1,2", 3)):
        assert penstock("sweep", job, cluster, "--profile", profile, bad).returncode == code, bad


def test_an_explanation():
    result = penstock("explain", job, cluster, "--profile", profile, *MANY, "nodes.cpu.count=0", "nodes.gpu.cores=10", "program.step_ms=1")
    assert result.returncode == 0 and "the loaders' threads, a tenth faster" in result.stdout.splitlines()[0], result


def test_predictions_are_validated():
    prediction, report = os.path.join(work.name, "prediction.json"), os.path.join(work.name, "report.json")
    told = simulated()
    with open(prediction, "w") as file:
        json.dump(told, file)
    mean, stalled = told["prediction"]["images_per_s"]["mean"], told["prediction"]["stalled"]["mean"]
    for factor, code in ((1.02, 0), (1.5, 1)):
        with open(report, "w") as file:
            file.write('{"loss": 2.5}\n' if code else "epoch 0\n")  # what the program prints is no report
            json.dump({"splits": {"train": {"images_per_s": mean * factor, "wait_fraction": stalled}}}, file)
        result = penstock("validate", prediction, report)
        assert result.returncode == code, result
    assert "not kept: the mean error is 33.3 %, more than 5.0 %" in result.stdout, result.stdout
    said = penstock("validate", prediction, job)
    assert said.returncode == 2 and "help: " in said.stderr, said


def test_mistakes_have_their_exit_codes():
    def code(*words):
        return penstock("simulate", *words).returncode

    assert code(job, cluster, "--profile", "/nowhere") == 1
    with open(profile) as file:
        told = json.load(file)
    told["payload_bytes"] += 1
    changed = os.path.join(work.name, "changed.json")
    with open(changed, "w") as file:
        json.dump(told, file)
    said = penstock("simulate", job, cluster, "--profile", changed)
    assert said.returncode == 1 and "it was changed after it was measured" in said.stderr, said
    said = penstock("simulate", job, cluster, "--profile", profile, "nodes.gpu.cores=-3", "nodes.cpu.count=lots")
    assert said.returncode == 3 and "nodes.gpu.cores" in said.stderr and "nodes.cpu.count" in said.stderr, said
    said = penstock("simulate", job, cluster, "--profile", profile, "nodes.gpu.cores=8", "nodes.cpu.count=0")
    assert said.returncode == 3 and "this job cannot run on this cluster: it has no loader" in said.stderr, said
    assert code(job, "/nowhere", "--profile", profile) == 3
    assert code(job, cluster) == 2


def test_the_schema_of_cluster_files():
    schema = json.loads(subprocess.run([PENSTOCK, "schema", "--cluster"], capture_output=True, text=True, timeout=20).stdout)
    assert "nodes" in schema["required"] and schema["properties"]["network"]["properties"]["latency_us"]["minimum"] == 0


if __name__ == "__main__":
    run_tests(globals())
