// What a folder on the command line is: MDS shards, tar shards, Parquet files, a pack or class folders.
//
//   std::string line;
//   const DatasetSpec dataset = dataset_in("photos", line);   // line: "folder: /home/me/photos", for a job file
//
// Failure: FileError for a folder that cannot be listed; Error(usage) as refuse_splits_as_classes() says.
#pragma once

#include <string>
#include <vector>

#include "runtime/job/job.h"

namespace penstock {

DatasetSpec dataset_in(const std::string& given, std::string& line);

// "dataset: {KIND: /path, index: /path}" has its paths as YAML needs them: in quotes where a character means something.
std::string yaml_path(const std::string& path);

// Error(config) where nothing has that name, which might have been either.
void refuse_missing(const std::string& given, const std::string& one, const std::string& other);

// Links in the folder that lead nowhere: to class folders on a disk that is not mounted? As torchvision, loaders leave
// them out, and the labels of the classes behind them are others.
std::vector<std::string> lost_classes(const std::string& folder);
// Error(usage) where splits_as_classes() (runtime/datasets/split_folders.h) finds any.
void refuse_splits_as_classes(const std::string& folder);

}  // namespace penstock
