// What in a split belongs together, once its keys have been read: where samples come from, their order, the last batch.
//
//   check_dataset(node, key, "splits.train", job_path, split, reading);
//   check_sampler(node, "splits.train", job_path, split, complaints);
//   check_tail(node, split, complaints);
//
// Folders and files become absolute paths here, so that every process of the job means the same ones.
// Internal to runtime/job. Thread-safety: pure functions, but that relative paths start from the process's folder or
//   the job file's. Failure: complaints.
#pragma once

#include <string>

#include "runtime/job/job_reader.h"

namespace penstock {

// Exactly one of kDatasetKinds, and what belongs to it.
void check_dataset(const YamlNode& node, const Span& split_key, const std::string& path, const std::string& job_path,
                   SplitSpec& split, Reading& reading);
// Orders of another making than shuffle's, and what belongs to each.
void check_sampler(const YamlNode& node, const std::string& path, const std::string& job_path, SplitSpec& split,
                   Complaints& complaints);
void check_tail(const YamlNode& node, const SplitSpec& split, Complaints& complaints);

}  // namespace penstock
