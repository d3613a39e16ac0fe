"""Runs a program whose penstock.DataLoaders write down what they give.

    watched.py FOLDER PROGRAM [ARGUMENT…]

FOLDER/RANK.jsonl then has a line a batch: split, epoch, step, and the indices that are valid.
"""

import json
import os
import runpy
import sys

import penstock

folder, *sys.argv = sys.argv[1:]
log = open(os.path.join(folder, f"{os.environ.get('RANK', 0)}.jsonl"), "w", buffering=1)


class Watched(penstock.DataLoader):
    def _batch_of(self, *parts):
        batch = super()._batch_of(*parts)
        print(json.dumps([self.split, batch.epoch, batch.step, batch.indices[batch.valid].tolist()]), file=log)
        return batch


penstock.DataLoader = Watched
runpy.run_path(sys.argv[0], run_name="__main__")
