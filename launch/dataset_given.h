// What a folder on the command line is: MDS shards, tar shards, Parquet files, a pack or class folders.
//
//   std::string line;
//   const DatasetSpec dataset = dataset_in("photos", line);   // line: "folder: /home/me/photos", for a job file
//
// Failure: FileError for a folder that cannot be listed; Error(usage) as refuse_splits_as_classes() says.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/job.h"

namespace penstock {

DatasetSpec dataset_in(const std::string& given, std::string& line);

// The names of a folder's folders, where they are names of splits (train, val, test, …) and hold class folders of their
// own: as a data set of class folders they would be the classes. Empty: they are not.
std::vector<std::string> splits_as_classes(const std::string& folder);
// Links in the folder that lead nowhere: to class folders on a disk that is not mounted? As torchvision, loaders leave
// them out, and the labels of the classes behind them are others.
std::vector<std::string> lost_classes(const std::string& folder);
// Error(usage) where splits_as_classes() finds any.
void refuse_splits_as_classes(const std::string& folder);

}  // namespace penstock
