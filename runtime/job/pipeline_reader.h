// The lists of transforms in a split, from tree to specs: `pipeline`, and `gpu_pipeline` beside it.
//
//   read_pipeline(value, "splits.train.pipeline", split.pipeline, reading);
//   check_variants(split_node, "splits.train", good, split, reading);
//
// Names and parameters are those of the catalogue of transforms (transforms/catalog.h), and the order is checked as far
//   as the list alone tells.
// Internal to runtime/job. Thread-safety: pure functions. Failure: complaints; what they are about is left out.
#pragma once

#include <string>
#include <vector>

#include "runtime/job/job_reader.h"

namespace penstock {

void read_pipeline(const YamlNode& node, const std::string& path, std::vector<TransformSpec>& pipeline,
                   Reading& reading);

// The second list of transforms, what says whose a sample is, and that both finish alike. (That both end in the same
// size is seen where pipelines are made.) `good`: `pipeline` is as it was written.
void check_variants(const YamlNode& node, const std::string& path, bool good, SplitSpec& split, Reading& reading);

}  // namespace penstock
