#!/usr/bin/env bash
# Two trainers and two loaders on this machine; further words go to train_model.py.
#
#   examples/classifier/scripts/train_with_ddp.sh PHOTOS examples/classifier/configs/resnet18.yaml --set stages.0.epochs=2
set -euo pipefail
photos=$(realpath "$1")
here=$(dirname "${BASH_SOURCE[0]}")/..
penstock launch --run "$here/job.yaml" -n 4 --quiet "splits.train.dataset.folder=$photos" "splits.val.dataset.folder=$photos" -- \
  python "$here/train_model.py" train "${@:2}" --set "data.folder=$photos"
