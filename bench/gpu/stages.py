"""The stages behind entropy decoding, and with it, of 500x375 photos in 4:2:0 to 224 (bench_gpu_stages), and the whole exact
path at a loader's executor (penstock bench decode). Goal: 100,000 images/s behind entropy decoding."""

import json
import subprocess
import sys

from common import BUILD, PENSTOCK, PLAYED, done, emit, job, photos_500x375, say, write_job

folder = photos_500x375(sys.argv[1], 8 if PLAYED else 512)
run = subprocess.run([BUILD + "/bench_gpu_stages", folder, f"--rounds={1 if PLAYED else 50}"], stdout=subprocess.PIPE, text=True)
best = 0
for line in run.stdout.splitlines():
    figures = json.loads(line)
    emit("stages: " + figures.pop("name"), figures.pop("ok"), **figures)
    if "coefficients" in line:
        best = max(best, figures["images_per_s"])
emit("stages behind entropy decoding", run.returncode == 0, most_images_per_s=best, goal_images_per_s=100_000,
     goal_reached=best >= 100_000)

for entropy in ("auto", "never"):
    description = job(folder, [{"RandomResizedCrop": {"size": 224}}, {"RandomHorizontalFlip": {}}],
                      loader={"executor": "gpu", "gpu_entropy": entropy, "gpu_memory_mb": 64 if PLAYED else 4096})
    path = write_job(description, "decode_" + entropy)
    done_by = subprocess.run([PENSTOCK, "bench", "decode", path, "--device=gpu", "--json", f"--seconds={1 if PLAYED else 15}"],
                             stdout=subprocess.PIPE, text=True)
    say(done_by.stdout)
    figures = json.loads(done_by.stdout) if done_by.returncode == 0 else {}
    emit(f"executor, gpu_entropy: {entropy}", done_by.returncode == 0, **figures)
done()
