// How a split differs from the one that a state was saved with: first_difference() of job.h, in words for one who resumes.
//
//   difference_since_saved(saved, canonical_json(split));  // "splits.train.batch_size (saved: 64, now: 32)"; "": it is equal
//
// Both are texts of canonical_json(). Pure function.
#pragma once

#include <string>

namespace penstock {

std::string difference_since_saved(const std::string& saved, const std::string& now);

}  // namespace penstock
