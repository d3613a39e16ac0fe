// What was measured of a machine and a data set, for plans: how long a thread takes for a sample, how large samples are,
// what the program's own work costs, and, of a job that ran, how long a step takes.
//
//   Profile profile = profile_of_report(report, {.job = "job.yaml", .split = "train"});   // of a run: run --profile FILE
//   write(path, to_text(profile));
//   Profile profile = read_profile("profile.json");
//
// The file is JSON with a hash over everything else, so that a prediction names what it was made from and a profile that
//   was edited is noticed. Histograms, not means: a queue's waits follow from the tail.
// Thread-safety: values; pure functions but for reading. Failure: Error(runtime) for a file that cannot be
//   read, is no profile, or was changed; Error(usage) for a report that holds no such split, or nothing that was made.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/base/histogram.h"
#include "runtime/simulate/fleet/fleet_spec.h"

namespace penstock {

struct Profile {
  std::string made_by;  // the command
  std::string machine;  // host, processor, cores
  std::string date;     // UTC
  std::string version;  // of penstock
  std::string job;      // the name of its file
  std::string split;
  std::string dataset;
  std::string pipeline;  // hash of the split's transforms; empty: not known

  int64_t dataset_size = 0;
  int64_t payload_bytes = 0;  // of one sample, decoded, as it travels
  int64_t pixels = 0;         // of one, decoded; 0: not known
  Histogram sample_ns;        // a thread's time for one
  Histogram sample_bytes;     // encoded
  double ns_per_byte = 0;     // by how much a sample takes longer for each byte that it is larger
  Histogram step_ns;          // from a batch to the program's next question; empty: no program was there
  OverheadModel overhead;

  std::string hash;  // of all of that, 32 hexadecimal digits
};

// From the report of a run (`penstock run --json`). `profile` has made_by to dataset, and dataset_size.
Profile profile_of_report(const nlohmann::json& report, Profile profile);

std::string to_text(const Profile& profile);  // with its hash
Profile profile_from_text(const std::string& text, const std::string& name);
Profile read_profile(const std::string& path);

}  // namespace penstock
