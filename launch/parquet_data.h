// The samples of Parquet files, copied once into a file beside the index: loaders read that and no Parquet.
//
//   SampleTable table = copy_parquet(dataset, "/data/train.index", job.python, limits);   // for `penstock index`
//   // now there is /data/train.index.data, and the table points into it
//
// A Python process with pyarrow (bindings/python/penstock/_parquet.py has the protocol) writes a tar archive under a
//   temporary name; what reads all tar shards lists it here, and it is renamed. So nothing of what Parquet files hold
//   is parsed by new code, and a process that goes astray can at worst write an archive that is refused.
// The table: kind "parquet", file 0 the archive, the others the Parquet files as they were before; keys are
//   "train-0.parquet[17]". An index refuses Parquet files that were changed since (index_file.h).
// Waits: for a sign of life, python.start_timeout_s at most; the process gives one every 64 rows.
// Failure: Error(dataset) naming file, row and column; Error(runtime) without pyarrow, for a process that ends, for the
//   disk. The temporary file goes with the failure; after a SIGKILL or crash the next run writes over it.
// Two at once: the second is refused; the archive is locked until it is renamed.
#pragma once

#include <string>

#include "runtime/datasets/sample_table.h"
#include "runtime/job/job.h"

namespace penstock {

SampleTable copy_parquet(const DatasetSpec& dataset, const std::string& index, const PythonSpec& python,
                         const DecodeLimits& limits);

}  // namespace penstock
