"""What bench/gpu.sh runs on a borrowed machine, with steps of the test's own: results, skips, failures, time that is over,
going on where the last run stopped."""

import functools
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time

from jobs import run_tests
from leftovers import run as run_program

SOURCE = os.environ["PENSTOCK_SOURCE"]
WORK = tempfile.mkdtemp(prefix="gpu-run-test-")
_asked = {}


def bundle(name):
    """An unpacked bundle with nothing in it but the runner, loaded as a module."""
    root = os.path.join(WORK, name, "penstock_gpu")
    folder = os.path.join(root, "source", "bench", "gpu")
    os.makedirs(folder)
    shutil.copy(os.path.join(SOURCE, "bench", "gpu", "run.py"), folder)
    with open(os.path.join(root, "bundle.json"), "w") as file:
        json.dump({"commit": "abc", "built_for_python": "%d.%d" % sys.version_info[:2]}, file)
    spec = importlib.util.spec_from_file_location("gpu_run_" + name, os.path.join(folder, "run.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Each run asks what there is here, by programs that import torch for seconds: one answer does for all runs of this test.
    module.output_of = _asked.setdefault("output_of", functools.cache(module.output_of))
    return module


def program(text):
    return ["{python}", "-c", text]


class Given:
    verb, first, minutes = "run", None, 1

    def __init__(self, *steps, minutes=1):
        self.steps, self.minutes = list(steps), minutes


def outcomes(runner):
    with open(os.path.join(runner.ROOT, "results.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    assert all(line["gpu"] == "played by the CPU" and line["commit"] == "abc" and line["date"] for line in lines)
    return lines, {line["step"]: line for line in lines if line["kind"] == "step"}


def test_outcomes():
    runner = bundle("outcomes")
    runner.STEPS = [
        runner.Step("good", "one", 20, program("print('prose'); print('{\"name\": \"a\", \"ok\": true}'); print('{no json')"), "?"),
        runner.Step("none", "one", 20, program("import sys; print('SKIP: no such thing here'); sys.exit(77)"), "?"),
        runner.Step("wrong", "two", 20, program("import sys; print('it is wrong', file=sys.stderr); sys.exit(3)"), "?"),
        runner.Step("gpu_alone", "two", 20, program("raise SystemExit(1)"), "?", played=False),
        runner.Step("killed", "two", 20, program("import os; os.kill(os.getpid(), 9)"), "?")]
    assert runner.run(Given(), played=True) == 1
    lines, steps = outcomes(runner)
    assert [steps[name]["outcome"] for name in ("good", "none", "wrong", "gpu_alone", "killed")] == [
        "passed", "skipped", "failed", "skipped", "failed"]
    assert steps["none"]["why"] == "no such thing here" and steps["wrong"]["why"] == "exit 3" and "-9" in steps["killed"]["why"]
    assert [line["result"] for line in lines if line["kind"] == "result"] == [{"name": "a", "ok": True}]
    with open(os.path.join(runner.ROOT, "logs", "good.txt")) as file:
        assert file.read() == "prose\n{no json\n"
    # Once more: what passed or was skipped is done, what failed is tried again.
    before = len(lines)
    assert runner.run(Given(), played=True) == 1
    lines, _ = outcomes(runner)
    assert [line["step"] for line in lines[before:] if line["kind"] == "step"] == ["wrong", "killed"]
    # By name, also when it is done; by group.
    assert runner.run(Given("good"), played=True) == 0
    assert runner.run(Given("one"), played=True) == 0


def test_time_that_is_over():
    runner = bundle("late")
    mark = os.path.join(WORK, "grandchild")
    sleeper = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); open({mark!r}, 'w').write(str(p.pid)); p.wait()"
    runner.STEPS = [runner.Step("endless", "one", 5, program(sleeper), "?"), runner.Step("next", "one", 20, program("pass"), "?")]
    begun = time.monotonic()
    assert runner.run(Given(), played=True) == 1
    assert time.monotonic() - begun < 40
    _, steps = outcomes(runner)
    assert steps["endless"]["outcome"] == "timed out" and steps["next"]["outcome"] == "passed"
    with open(mark) as file:
        pid = int(file.read())
    for _ in range(100):  # it was killed; whoever took it over may be slow to bury it
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    break
        except FileNotFoundError:
            break
        time.sleep(0.1)
    else:
        raise AssertionError("a program of the step's lives on")


def test_what_does_not_fit_is_left_for_the_next_run():
    runner = bundle("left")
    runner.STEPS = [runner.Step("short", "one", 10, program("import time; time.sleep(2)"), "?"),
                    runner.Step("long", "one", 15, program("pass"), "?")]
    assert runner.run(Given(minutes=15 / 60), played=True) == runner.AGAIN
    assert list(outcomes(runner)[1]) == ["short"]
    assert runner.run(Given(minutes=15 / 60), played=True) == 0
    assert outcomes(runner)[1]["long"]["outcome"] == "passed"


def test_words_at_the_command_line():
    top = os.path.join(SOURCE, "bench", "gpu.sh")
    listed = run_program([top, "list"], timeout=60)
    assert listed.returncode == 0 and "component" in listed.stdout and "bytes" in listed.stdout
    wrong = run_program([top, "list", "nothing"], timeout=60)
    assert wrong.returncode != 0 and "no step 'nothing'" in wrong.stderr
    assert run_program([top], timeout=60).returncode == 2
    assert "not an unpacked bundle" in run_program([top, "run"], timeout=60).stderr


try:
    run_tests(globals())
finally:
    shutil.rmtree(WORK, ignore_errors=True)
