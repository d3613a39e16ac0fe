// `penstock profile`, and the profile of a run: what was measured of this machine and data set, for `penstock plan`.
//
//   save_profile(request, job, report);   // rank 0, when the job has ended well
#pragma once

#include <nlohmann/json_fwd.hpp>
namespace penstock {

struct Job;
struct RunRequest;

// Profiles the job's training split (its first one, or an evaluation split where it has no other). Error(runtime) where
// the file cannot be written.
void save_profile(const RunRequest& request, const Job& job, const nlohmann::json& report);

}  // namespace penstock
