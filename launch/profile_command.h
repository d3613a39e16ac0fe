// `penstock profile`, and the profile of a run: what was measured of this machine and data set, for `penstock plan`.
//
//   save_profile(request.profile_file, job, report, "penstock run --profile");   // rank 0, when the job has ended well
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock {

struct Job;

// Of the job's training split (its first one; of an evaluation split where it has no other). Error(runtime) where the
// file cannot be written.
void save_profile(const std::string& path, const Job& job, const nlohmann::json& report, const std::string& made_by);

}  // namespace penstock
