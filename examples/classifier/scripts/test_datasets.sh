#!/usr/bin/env bash
# Whether the data are in order, before anything is trained: files, classes, and a sheet of augmented pictures.
#
#   examples/classifier/scripts/test_datasets.sh PHOTOS
set -euo pipefail
photos=$(realpath "$1")
job=$(dirname "${BASH_SOURCE[0]}")/../job.yaml
words=("splits.train.dataset.folder=$photos" "splits.val.dataset.folder=$photos")
penstock check "$job" "${words[@]}"
penstock inspect "$job" "${words[@]}" --split train --steps 1 --out inspected
echo "look at the pictures in inspected/"
