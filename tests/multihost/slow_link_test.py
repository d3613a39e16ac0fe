"""A slow network: loaders behind it keep it busy, loaders at home need it not, the report names it; and the stream stays
what it is. The nodes and the link between them are support/hosts.py's."""

import functools
import json
import os
import statistics
import sys
import tempfile

from hosts import Hosts, can_delay, skip_without_hosts
from jobs import FULL, PENSTOCK, Result, demo_photos, left_to_full, run_job, run_tests, small_pictures
from leftovers import no_leftovers, run

skip_without_hosts()
work = tempfile.TemporaryDirectory(prefix="slow_link_test-")
IMAGE_BYTES = 224 * 224 * 3
job = os.path.join(work.name, "job.yaml")
with open(job, "w") as file:
    file.write(f"""\
seed: 3
loader: {{threads: 1, memory_gb: 0.25}}
trainer: {{timeout_s: 60, grace_s: 2}}
splits:
  train:
    mode: train
    dataset: {{folder: {json.dumps(os.path.join(demo_photos(400, 20), "train"))}}}
    pipeline:
      - RandomResizedCrop: {{size: 224}}
      - ToDtype: {{dtype: float32, scale: true}}
    sampler: {{shuffle: true}}
    batch_size: 16
    tail: pad
""")


# They make as many bytes, with hardly any work: beside other tests photos would keep two loaders busier than the link.
EASY = [] if FULL else [f"splits.train.dataset.folder={small_pictures(os.path.join(work.name, 'pictures'), 400, 20)}/train"]


def launch(hosts, env, trainers, loaders, epochs, overrides=()):
    words = [PENSTOCK, "launch", "--run", job, f"--trainer-host={trainers}", f"--loader-host={loaders}", "--json",
             f"--epochs={epochs}", *overrides]
    result = Result(run(hosts.enter(0, words), 200, env=hosts.environment(env)))
    assert result.code == 0, result.log
    return result


def links(report):
    """{(from, to): chunks} of the report, by host."""
    ranks = report["ranks"]
    balance = next(rank["balance"] for rank in ranks if "balance" in rank)
    host = {balance["nodes"][rank["rank"]]: rank["host"] for rank in ranks}
    return {(host[link["from"]], host[link["to"]]): link["chunks"] for link in balance["links"]}


def check_the_link_is_blamed(report, mbit):
    # On a busy machine the coordinator can pause for half a second. What waited in its sockets then arrives at once, faster
    # than the link can carry, and the report does not blame the link (link_costs.h).
    balance = next(rank["balance"] for rank in report["ranks"] if "balance" in rank)
    peak_mb_per_s = max(link["peak_mb_per_s"] for link in balance["links"] if link["from"] != link["to"])
    if not FULL and peak_mb_per_s > 1.4 * mbit / 8:
        print(f"  {peak_mb_per_s:.1f} MB/s at its best: the coordinator paused, so the sentence is not checked", flush=True)
        return
    assert "The network held the job up" in report["bottleneck"], report["bottleneck"]
    assert "the link from host1 to host0 carried" in report["bottleneck"], report["bottleneck"]


def images_over(env, mbit, delay_ms=None):
    """A job whose loaders are all behind a link; returns how much of what it carries were images."""
    with Hosts(2, env) as hosts:
        if delay_ms is None:
            hosts.limit_link(1, mbit)
        else:
            hosts.delay_link(1, delay_ms, mbit)
        result = launch(hosts, env, "host0:1", "host1:2", epochs=1, overrides=EASY)
    share = result.report["splits"]["train"]["images_per_s"] * IMAGE_BYTES * 8 / (mbit * 1e6)
    print(f"  {mbit} Mbit/s{'' if delay_ms is None else f', {delay_ms} ms each way'}: images are {share:.1%} of it", flush=True)
    check_the_link_is_blamed(result.report, mbit)
    return share, result.hashes()


@functools.cache
def expected_hashes():
    with no_leftovers() as env:
        return run_job(job, options=["--epochs=1"], overrides=["roles.trainers=1", *EASY], env=env).hashes()


def test_loaders_behind_a_slow_link_keep_it_busy():
    expected = expected_hashes()
    for mbit in (20, 100) if FULL else (100,):
        with no_leftovers() as env:
            share, hashes = images_over(env, mbit)
        assert hashes == expected
        assert share >= (0.9 if FULL else 0.5), share


@left_to_full("test_loaders_behind_a_slow_link_keep_it_busy: the same without delay")
def test_loaders_behind_a_link_that_delays_keep_it_busy():
    if not can_delay():
        return  # said at the end
    expected = expected_hashes()
    for mbit, delay_ms in ((100, 5), (20, 20)):
        with no_leftovers() as env:
            share, hashes = images_over(env, mbit, delay_ms)
        assert hashes == expected
        assert share >= 0.9, share


def test_with_loaders_at_home_hardly_anything_crosses_it():
    epochs = 40 if FULL else 2
    with no_leftovers() as env:
        expected = run_job(job, options=[f"--epochs={epochs}"], overrides=["roles.trainers=2"], env=env).hashes()
    rates = {None: [], 100: []}
    crossed = []
    for mbit in (None, 100) * 5 if FULL else (100,):
        with no_leftovers() as env, Hosts(2, env) as hosts:
            if mbit:
                hosts.limit_link(1, mbit)
            result = launch(hosts, env, "host0:1,host1:1", "host0:1,host1:1", epochs)
        assert result.hashes() == expected
        rates[mbit].append(result.report["splits"]["train"]["images_per_s"])
        if mbit:
            chunks = links(result.report)
            crossed.append(sum(n for (a, b), n in chunks.items() if a != b) / sum(chunks.values()))
    print(f"  crossed: {', '.join(f'{share:.1%}' for share in crossed)} of the chunks", flush=True)
    # Other processes may leave the loaders at one end so little of their cores that the other's are worth the link.
    assert statistics.median(crossed) < (0.15 if FULL else 0.35), crossed
    if FULL:
        ratio = statistics.median(rates[100]) / statistics.median(rates[None])
        print(f"  {ratio:.3f} of the rate without the link; {rates}", flush=True)
        assert ratio >= 0.95, rates


if __name__ == "__main__":
    run_tests(globals())
    if FULL and not can_delay():
        print("SKIP: no TAP devices (/dev/net/tun): all but the link that delays was tested")
        sys.exit(77)
