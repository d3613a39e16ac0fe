// What a folder on the command line is: MDS shards, tar shards, Parquet files, a pack or class folders.
//
//   std::string line;
//   const DatasetSpec dataset = dataset_in("photos", line);   // line: "folder: /home/me/photos", for a job file
//
// Failure: FileError for a folder that cannot be listed.
#pragma once

#include <string>

#include "runtime/config/job.h"

namespace penstock {

DatasetSpec dataset_in(const std::string& given, std::string& line);

}  // namespace penstock
