"""What `penstock launch` writes for clusters: a script for Slurm, a manifest for Kubernetes, Dockerfiles. Shells' syntax by
shellcheck; the manifest against what mpi-operator's own validation and controller ask of an MPIJob and give to its pods.
slurm_test.py runs such a script; no manifest has been run on a cluster."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile

import yaml

from jobs import PENSTOCK, Result, run_tests, write_job
from leftovers import run

work = tempfile.TemporaryDirectory(prefix="launch_files_test-")
job = write_job(work.name, "/photos", trainers=None, name="my_Job.v2.yaml")
alike = write_job(work.name, "/photos", trainers=2, name="alike.yaml")
SOURCE = os.environ["PENSTOCK_SOURCE"]
APART = ["--trainer-nodes=2:8:1", "--loader-nodes=3:4"]  # a loader on each node that trains, too


def launch(*words, job_file=job, cwd=work.name):
    return Result(run([PENSTOCK, "launch", job_file, *words], 60, cwd=cwd))


def written(*words, **kwargs):
    result = launch(*words, **kwargs)
    assert result.code == 0, result.log
    return result.stdout


def refused(*words, **kwargs):
    result = launch(*words, **kwargs)
    assert result.code in (2, 3) and "help:" in result.stderr and not result.stdout, result.log
    return result.stderr


def shellcheck(text, name, shell):
    path = os.path.join(work.name, name)
    with open(path, "w") as file:
        file.write(text)
    # What stands in single quotes (SC2016) is the program's; a host (SC2013) is a word.
    result = subprocess.run(["shellcheck", "--shell", shell, "--exclude=SC2013,SC2016", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_slurm_scripts():
    program = ["--", "sh", "-c", "echo \"it's $RANK\""]
    apart = written("--slurm", *APART, "--gpus=8", "--json", "seed=7", *program)
    groups = [dict(word[2:].partition("=")[::2] for word in re.findall(r"--\S+", group))
              for group in apart.split("set -euo")[0].split("#SBATCH hetjob")]
    name = "my-job-v2"
    assert [{key: group.get(key) for key in ("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "mem")}
            for group in groups] == [
        {"job-name": name, "nodes": "2", "ntasks-per-node": "1", "cpus-per-task": "10", "gpus-per-node": "8", "mem": None},
        # 4 loaders of 2 threads, each 0.25 GB and 1 for the program itself.
        {"job-name": name, "nodes": "3", "ntasks-per-node": "1", "cpus-per-task": "8", "gpus-per-node": None, "mem": "5G"}], groups
    assert "signal" in groups[0] and "signal" not in groups[1], groups  # the script is the first component's
    command = next(line for line in apart.splitlines() if " launch --run " in line)
    assert shlex.split(command) == [PENSTOCK, "launch", "--run", job, "--json", "seed=7", "--trainer-nodes=2:8:1", "--loader-nodes=3:4",
                                    *program, "&"], command
    assert "srun --het-group=0,1 " in apart and "node{0..4}" in apart and f"cd {work.name}\n" in apart, apart
    same = written("--slurm", "--nodes=4", "--loaders=3", "--serve", "--idle-s=5", job_file=alike)
    assert "hetjob" not in same and "--nodes=4 " in same and "--cpus-per-task=8\n" in same, same
    assert "--run " + alike + " --serve --idle-s=5.0 --nodes=4 --loaders=3 &" in same, same
    assert "Not tested on a cluster" not in apart + same
    pyxis = written("--slurm", *APART, "--image=registry#penstock:1")
    assert "  --container-image='registry#penstock:1' --container-mounts=\"$PWD:$PWD\"" in pyxis, pyxis
    assert "  penstock launch --run " in pyxis and "Not tested on a cluster" in pyxis, pyxis  # the image's own penstock
    for image in ("penstock.sif", "docker://registry/penstock:1"):
        apptainer = written("--slurm", *APART, f"--image={image}", "--gpus=8")
        assert f"  apptainer exec --nv --bind \"$PWD\" --pwd \"$PWD\" {image} \\\n  penstock launch --run " in apptainer, apptainer
    for number, text in enumerate((apart, same, pyxis, apptainer)):
        shellcheck(text, f"script{number}.sh", "bash")


def containers(replica):
    return replica["template"]["spec"]["containers"]


def check_mpijob(documents, replicas):
    """What mpi-operator's validation refuses (pkg/apis/kubeflow/validation), and what its controller relies on."""
    mpijob = next(one for one in documents if one["kind"] == "MPIJob")
    assert mpijob["apiVersion"] == "kubeflow.org/v2beta1"
    name, spec = mpijob["metadata"]["name"], mpijob["spec"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(f"{name}-worker-1000") <= 63, name
    assert spec["slotsPerWorker"] > 0 and spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All"), spec
    assert set(spec["mpiReplicaSpecs"]) == {"Launcher", "Worker"}  # it has no other kinds
    for kind, count in (("Launcher", 1), ("Worker", replicas)):
        replica = spec["mpiReplicaSpecs"][kind]
        assert replica["replicas"] == count and replica["restartPolicy"] in ("Never", "OnFailure"), replica
        assert len(containers(replica)) == 1 and "restartPolicy" not in replica["template"]["spec"], replica
    return name, spec


def check_pod(spec, job_file):
    """Every pod has the job file, its folder, shared memory, the image and its mounts' volumes."""
    (container,) = spec["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {os.path.dirname(job_file), job_file, "/dev/shm"} <= set(mounts), mounts
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes), (mounts, volumes)
    assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"] == {"medium": "Memory"}, volumes
    assert container["image"] == "registry/penstock:1" and spec["terminationGracePeriodSeconds"] > 2, spec
    return container


def test_kubernetes_manifests():
    program = ["--", "python", "train.py", "--name", "it's", "$$ $(HOSTNAME) $x"]
    words = ["--k8s", "--image=registry/penstock:1", "--gpus=8", "seed=7"]
    for apart in (True, False):
        job_file = job if apart else alike
        text = written(*words, *(APART if apart else ["--nodes=2", "--loaders=3"]), *program, job_file=job_file)
        assert "not tested on a cluster" in text, text
        documents = list(yaml.safe_load_all(text))
        assert [one["kind"] for one in documents] == ["ConfigMap", "MPIJob"] + ["Service", "StatefulSet"] * apart, text
        name, spec = check_mpijob(documents, 2)
        with open(job_file) as file:
            assert documents[0]["data"] == {"job.yaml": file.read()}
        assert documents[0]["metadata"]["name"] == f"{name}-job"
        launcher, worker = (check_pod(spec["mpiReplicaSpecs"][kind]["template"]["spec"], job_file) for kind in ("Launcher", "Worker"))
        assert "nvidia.com/gpu" not in str(launcher["resources"]) and launcher["command"] == ["/bin/sh", "-c"], launcher
        assert worker["resources"]["limits"] == {"nvidia.com/gpu": 8}, worker
        (script,) = launcher["args"]
        assert "$$$$ $$(HOSTNAME) $$x" in script, script  # Kubernetes makes one of two
        script = script.replace("$$", "$")
        shellcheck(script, "launcher.sh", "sh")
        for command in (worker["command"], worker["lifecycle"]["preStop"]["exec"]["command"]):
            shellcheck(command[-1], "node.sh", "sh")
        last = script.strip().splitlines()[-1]
        if apart:
            where = ["--trainer-hostfile=/etc/mpi/hostfile", "--loader-hostfile=/run/loaders"]
            assert spec["slotsPerWorker"] == 8 and worker["resources"]["requests"] == {"cpu": 10, "memory": "2G"}, spec
            service, loaders = documents[2:]
            loader = check_pod(loaders["spec"]["template"]["spec"], job_file)
            assert loader["resources"] == {"requests": {"cpu": 8, "memory": "5G"}}, loader
            assert loaders["spec"]["replicas"] == 3 and loaders["spec"]["serviceName"] == service["metadata"]["name"], loaders
            labels = loaders["spec"]["template"]["metadata"]["labels"]
            assert labels == loaders["spec"]["selector"]["matchLabels"] == service["spec"]["selector"], labels
            assert service["spec"]["clusterIP"] == "None" and loader["command"] == worker["command"]
            key = next(one["secret"] for one in loaders["spec"]["template"]["spec"]["volumes"] if one["name"] == "ssh")
            assert key["secretName"] == f"{name}-ssh" and key["defaultMode"] == 0o600, key
        else:
            where = ["--hostfile=/etc/mpi/hostfile", "--loaders=3"]
            assert spec["slotsPerWorker"] == 5 and worker["resources"]["requests"] == {"cpu": 8, "memory": "4G"}, spec
        assert shlex.split(last) == ["exec", "penstock", "launch", "--run", job_file, "seed=7", *where, *program], last


def test_names_and_words_that_a_manifest_cannot_have():
    words = ["--k8s", "--image=registry/penstock:1", "--nodes=2", "--loaders=3"]
    names = set()
    for stem in ("\u00fc", "123", "-"):
        path = os.path.join(work.name, stem + ".yaml")
        shutil.copyfile(alike, path)
        documents = list(yaml.safe_load_all(written(*words, job_file=path)))
        names.add(documents[1]["metadata"]["name"])
    assert len(names) == 3 and all(re.fullmatch(r"penstock-[0-9a-f]{8}", name) for name in names), names
    for stem in ("no", "null", "on", "true"):  # YAML has a meaning of its own for them
        path = os.path.join(work.name, stem + ".yaml")
        shutil.copyfile(alike, path)
        documents = list(yaml.safe_load_all(written(*words, job_file=path)))
        assert documents[1]["metadata"]["name"] == stem, documents[1]["metadata"]
    for comment in ("\u0085", "\u2028"):
        path = os.path.join(work.name, "comment.yaml")
        with open(alike) as given, open(path, "w") as file:
            file.write(f"# before{comment}after\n{given.read()}")
        assert "has control characters, or is no UTF-8" in refused(*words, job_file=path)
    assert "pods see the job file's folder" in refused(*words, "--", "python3", "train.py", job_file=alike, cwd="/")
    for kind in (words, ["--docker"]):
        for word in ("a\rb", "\x01", b"\xff"):
            assert "has control characters, or is no UTF-8" in refused(*kind, "--", "sh", word, job_file=alike), word


def test_dockerfiles():
    program = ["--", "python", "train.py", "--name", "it's"]
    cpu = written("--docker", "-n", "4", "seed=7", *program, job_file=alike)
    for text, cuda in ((cpu, False), (written("--docker", "--loaders=2", "--gpus=1", job_file=alike), True),
                       (written("--docker", "loader.executor=gpu", job_file=alike), True)):
        lines = text.splitlines()
        assert lines.count("FROM debian:12-slim") == 1 and text.count("\nCMD ") == 1, text
        assert ("launch/install_cuda.sh" in text) == ("-DPENSTOCK_CUDA=ON" in text) == ("--gpus all" in text) == cuda, text
        for script in re.findall(r"launch/\w+\.sh", text):
            assert os.access(os.path.join(SOURCE, script), os.X_OK), script
    command = yaml.safe_load(cpu.splitlines()[-1].partition(" ")[2])
    assert command == ["penstock", "launch", "--run", "alike.yaml", "-n4", "seed=7", *program], command


def test_data_that_containers_do_not_see_is_named_with_its_mount():
    job_of = os.path.join(work.name, "beside.yaml")
    docker, k8s = ["--docker"], ["--k8s", "--image=x", "--nodes=2", "--loaders=2"]
    slurm = ["--slurm", "--nodes=2", "--loaders=2"]
    for words, help_text in ((docker, "docker run -v /photos/train:/photos/train:ro"), (k8s, 'mountPath "/photos/train"'),
                             ([*slurm, "--image=x.sif"], "add /photos/train:/photos/train:ro to --bind")):
        said = launch(*words, job_file=alike)
        assert said.code == 0 and "the job reads '/photos/train'" in said.stderr and help_text in said.stderr, said.log
        assert said.stderr.count("the job reads") == 2, said.log  # and val
    assert "the job reads" not in launch(*slurm, job_file=alike).stderr
    with open(alike) as given:
        text = given.read()
    for folder, where in (("data", ()), (f"{work.name}/data", (docker,)), ("../data", (docker, k8s))):
        with open(job_of, "w") as file:
            file.write(text.replace("/photos", folder))
        for words in (docker, k8s):
            said = launch(*words, job_file=job_of)
            assert said.code == 0 and ("the job reads" in said.stderr) == (words in where), (folder, words, said.log)


def test_what_a_cluster_could_not_run_is_refused_at_once():
    assert "nothing says how many nodes" in refused("--slurm")
    assert "nothing says how many ranks load" in refused("--slurm", "--nodes=2")
    assert "only the nodes of one role" in refused("--k8s", "--loader-nodes=2:4", "--image=x")
    assert "one number of ranks" in refused("--slurm", "--trainer-nodes=1:8", "--loader-nodes=2:4:1")
    assert "nodes are counted twice" in refused("--slurm", "--nodes=2", *APART)
    assert "pods need an image" in refused("--k8s", *APART)
    assert "roles.trainers is 2, and --trainer-nodes says" in refused("--slurm", *APART, job_file=alike)
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
        hosts.write("a slots=2\n")
        hosts.flush()
        words = (f"--trainer-hostfile={hosts.name}", "--loader-host=b:3")
        if shutil.which("mpirun"):  # which the line is for
            assert "roles.trainers is 2, and --trainer-hostfile says" in refused("--print", *words, job_file=alike)
    assert "-n" in refused("--slurm", *APART, "-n", "4")
    assert "nothing says which they are" in refused("--run", *APART)
    for prefix in ("with space", "a:b", "a$x", 'a"b', "a;b"):
        with tempfile.TemporaryDirectory(dir=work.name, prefix=prefix) as folder:
            assert "would misread a path with such characters" in refused("--slurm", *APART, cwd=folder), prefix
    assert "not in range" in refused("--run", "-n", "2", "--epochs=-3") or "above 0" in refused("--run", "-n", "2", "--epochs=-3")
    for words in (["--nodes=3"], APART, ["--image=foo"]):
        assert "a Dockerfile says nothing of nodes" in refused("--docker", *words)
    assert "leaves no loader" in refused("--docker", "-n", "1")
    assert "both say how many ranks" in refused("--docker", "-n", "4", "--loaders=2")
    for words in (["--slurm", "--k8s", "--nodes=2"], ["--slurm", "--run"], ["--docker", "--print"]):
        assert "excludes" in refused(*words)
    for words in (["--slurm", "--host=a", "--nodes=2"], ["--docker", "--trainer-host=a:1"], ["--run", "--host=a", "--nodes=2"]):
        assert "hosts are named, and a cluster chooses its own" in refused(*words)


if __name__ == "__main__":
    run_tests(globals())
