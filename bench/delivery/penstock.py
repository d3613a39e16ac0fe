"""penstock: one trainer rank and one loader rank under mpirun; the consumer is a C++ program, bench_consumer.

A variant is `auto`, or words joined by `_`:
    mpi        two-sided messages; else penstock chooses the transport (shm on one machine)
    embedded   the loader in the consumer's own process, without mpirun: the difference is what the hand-over costs
    learned    later epochs of the plain folder, with what was learned in the first ones (loader.index_memory_mb); without
               this word nothing is learned, so that all epochs are first ones
    indexed    with the file that `penstock index` writes
    packed     from the shards that `penstock pack` writes, JPEG files as they are
    rewritten  the same with --rewrite: JPEG files written anew where no pixel can change
    avx2       with code for AVX2 alone, on a CPU that has AVX-512 (PENSTOCK_VECTORS)

penstock draws its own crops. So that the others decode the same ones, the driver asks first for a trace, which is the
manifest of `penstock inspect`; and `check` gives what `inspect` wrote, together with the manifest that belongs to it.

What is expected of bench_consumer: `bench_consumer --job JOB --split train --seconds S --warmup W` touches every batch
as common.touch does, goes through as many epochs as it takes, and prints three JSON lines on stdout:
    {"event": "first"}                                         the first batch was touched
    {"event": "open"}                                          the warm-up is over (at least 8 batches), the clock runs
    {"images": 5120, "seconds": 5.01, "slowest_batch_s": 0.1, "checksum": 1.0}    S seconds later, with a batch in hand
It stays for half a second after the last line, so that the CPU time of all ranks can still be read.
`stages SECONDS` runs bench_stages on the same job: the CPU time of a sample by stage.
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

import common
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

INDEX, PACK = "photos.index", "photos.pack"  # in the folder of what was prepared

JOB = """\
name: bench_{pid}
seed: 0
on_error: fail
roles: {{trainers: 1}}
loader: {{threads: {threads}, prefetch: 2, memory_gb: 2, index_memory_mb: {index_memory_mb}}}
transport: {transport}
splits:
  train:
    mode: train
    dataset: {{{dataset}}}
    pipeline:
      - RandomResizedCrop: {{size: 224}}
      - RandomHorizontalFlip: {{}}
      - ToDtype: {{dtype: float32, scale: true}}
      - Normalize: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}
    sampler: {{shuffle: true}}
    batch_size: {batch}
    tail: {tail}
"""


def count_photos(folder):
    return sum(
        name.lower().endswith((".jpg", ".jpeg", ".png"))
        for parent, _, files in os.walk(folder, followlinks=True)
        if parent != folder
        for name in files
    )


class Penstock:
    variants = (
        *("auto", "mpi", "embedded", "learned", "learned_embedded", "indexed", "indexed_mpi", "indexed_embedded", "packed", "packed_mpi"),
        *("packed_embedded", "packed_rewritten", "avx2", "indexed_avx2", "packed_avx2"),
    )

    def __init__(self, options):
        self.options = options
        self.words = set(options.variant.split("_"))
        self.environment = dict(os.environ)
        if "avx2" in self.words:
            self.environment["PENSTOCK_VECTORS"] = "avx2"
        self.program = os.path.join(options.build, "penstock")
        self.consumer = os.path.join(options.build, "bench_consumer")
        self.folder = tempfile.mkdtemp(prefix="penstock-bench-")
        # Whole batches only, as the others make them; a folder smaller than a batch is filled up instead.
        photos = count_photos(options.data)
        self.tail = "drop" if photos >= options.batch else "pad"
        self.steps_per_epoch = max(1, photos // options.batch)
        self.job = os.path.join(self.folder, "job.yaml")
        self.write_job(options.prepared)

    def write_job(self, prepared):
        folder = json.dumps(os.path.abspath(self.options.data))
        dataset = f"folder: {folder}"
        if "indexed" in self.words:
            dataset += f", index: {json.dumps(os.path.join(prepared, INDEX))}"
        if "packed" in self.words:
            dataset = f"pack: {json.dumps(os.path.join(prepared, PACK))}"
        with open(self.job, "w", encoding="utf-8") as file:
            file.write(
                JOB.format(
                    pid=os.getpid(),
                    threads=self.options.threads,
                    index_memory_mb=512 if "learned" in self.words else 0,
                    transport="mpi" if "mpi" in self.words else "auto",
                    dataset=dataset,
                    batch=self.options.batch,
                    tail=self.tail,
                )
            )

    def prepare(self, folder):
        self.write_job(folder)
        if "packed" in self.words:
            command = [self.program, "pack", os.path.abspath(self.options.data), os.path.join(folder, PACK), "--json"]
            command += ["--rewrite"] if "rewritten" in self.words else []
            text = "shards with restart points, every picture decoded once to verify it; the photos' own bytes"
        else:
            command = [self.program, "index", self.job]
            text = "where each sample lies and its restart points; the photos stay as they are"
        with common.Preparation(folder) as cost:
            done = self.execute(command)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        more = {}
        if "rewritten" in self.words:
            report = json.loads(done.stdout)
            text = f"the same with {report['rewritten']} JPEG files losslessly rewritten"
            more["encoded_bytes"] = report["bytes"]
        return cost.reply(count_photos(self.options.data), note=text, **more)

    def execute(self, command):
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)

    def stages(self, seconds):
        command = [os.path.join(self.options.build, "bench_stages"), "--job", self.job, "--seconds", seconds]
        command += ["--learned", "3"] if "learned" in self.words else []
        done = self.execute(command)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return json.loads(done.stdout)

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def versions(self):
        shown = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False)
        return {"penstock": shown.stdout.strip() or "?"}

    def inspect(self, epoch, steps, *flags):
        """Runs `penstock inspect`; returns its folder and the manifest's records in the order of the batches."""
        out = os.path.join(self.folder, f"inspect{epoch}")
        command = [self.program, "inspect", self.job, "--split", "train", "--epoch", str(epoch)]
        command += ["--steps", str(steps), "--trainers", "1", "--out", out, *flags]
        done = self.execute(command)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        with open(os.path.join(out, "manifest.jsonl"), encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines if line.strip()]
        records.sort(key=lambda record: (record["step"], record["row_index"]))
        for record in records:
            record["path"] = os.path.join(os.path.abspath(self.options.data), record["path"])  # absolute ones stay
        return out, records

    @staticmethod
    def write_trace(records, out):
        with open(out, "w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record) + "\n")

    def trace(self, epochs, out):
        """The crops of the first epochs, for the others to replay."""
        records = []
        for epoch in range(int(epochs)):
            folder, more = self.inspect(epoch, self.steps_per_epoch, "--raw")
            shutil.rmtree(folder, ignore_errors=True)  # only the manifest is wanted
            records += more
        self.write_trace(records, out)
        return {"ok": True, "images": len(records), "versions": self.versions()}

    def check(self, count, out):
        count = int(count)
        folder, records = self.inspect(0, min(self.steps_per_epoch, -(-count // self.options.batch)))
        arrays = [
            np.load(os.path.join(folder, f"t0_s{step}_images.npy"))
            for step in sorted({record["step"] for record in records})
        ]
        array = np.concatenate(arrays)[:count]
        np.save(out, array)
        self.write_trace(records[: len(array)], out + ".trace.jsonl")
        shutil.rmtree(folder, ignore_errors=True)
        return {"ok": True, "images": len(array), "trace": out + ".trace.jsonl", "versions": self.versions()}

    def command(self, seconds):
        consumer = [self.consumer, "--job", self.job, "--split", "train"]
        consumer += ["--seconds", str(seconds), "--warmup", str(self.options.warmup)]
        if "embedded" in self.words:
            return consumer
        return [self.program, "launch", "--run", self.job, "-n", "2", "--", *consumer]

    def run(self, seconds):
        started = time.monotonic()
        process = subprocess.Popen(
            self.command(seconds),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        errors = []
        drain = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
        drain.start()
        first, before, at_open, result = None, None, None, None
        for line in process.stdout:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # progress for people
            if not isinstance(record, dict):
                continue
            if record.get("event") == "first":
                first = time.monotonic() - started
            elif record.get("event") == "open":
                before = common.tree_cpu_seconds(process.pid)
                _, at_open = common.tree_memory(process.pid)
            elif "images" in record and "seconds" in record and result is None:
                cpu = None if before is None else common.tree_cpu_seconds(process.pid) - before
                largest, proportional = common.tree_memory(process.pid)
                result = {
                    "images": record["images"],
                    "seconds": record["seconds"],
                    "cpu_seconds": cpu,
                    "first_batch_s": first,
                    "slowest_batch_s": record.get("slowest_batch_s"),
                    "max_rss": largest,
                    "pss": proportional,
                    "pss_at_open": at_open,
                    "checksum": record.get("checksum"),
                    "versions": self.versions(),
                }
        code = process.wait()
        drain.join(timeout=5)
        if code != 0 or result is None:
            raise RuntimeError(f"{' '.join(self.command(seconds))} ended with {code}: {''.join(errors)[-2000:]}")
        return result


def main():
    parser = common.arguments(Penstock.variants)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="folder of the programs")
    competitor = Penstock(parser.parse_args())
    try:
        common.serve(
            {
                "trace": competitor.trace,
                "prepare": competitor.prepare,
                "stages": competitor.stages,
                "check": competitor.check,
                "run": lambda seconds: competitor.run(float(seconds)),
            }
        )
    finally:
        competitor.close()


if __name__ == "__main__":
    main()
