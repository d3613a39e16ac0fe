#include "launch/profile_command.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "launch/command.h"
#include "launch/findings.h"
#include "launch/output_file.h"
#include "launch/run_job.h"
#include "runtime/base/cpu_set.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/job/job.h"
#include "runtime/simulate/plan/plan_files.h"
#include "runtime/simulate/plan/profile.h"

namespace penstock {
namespace {

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

void save_profile(const RunRequest& request, const Job& job, const nlohmann::json& report) {
  const std::string split = main_split(job);
  int64_t samples = 0;
  for (const nlohmann::json& rank : report.at("ranks")) {
    if (!rank.contains("splits") || !rank["splits"].contains(split)) continue;
    samples = std::max(samples, rank["splits"][split].value("epoch_samples", int64_t{0}));
  }
  Profile profile;
  const std::string processor = processor_name();
  profile.made_by = request.profiled_by;
  profile.machine = host_name() + ", " + (processor.empty() ? "unknown processor" : processor) + ", " +
                    std::to_string(CpuSet::allowed().count()) + " cores";
  profile.date = now_utc();
  profile.version = PENSTOCK_VERSION;
  profile.job = std::filesystem::path(job.path).filename();
  profile.split = split;
  profile.dataset = job.splits.at(split).dataset.title();
  profile.dataset_size = samples;
  profile = profile_of_report(report, std::move(profile));
  profile.pipeline = pipeline_hash(job, split);
  if (request.program.empty()) profile.step_ns = {};  // what took the batches was no training program
  write_output_file(request.profile_file, to_text(profile));
}

void add_profile(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<RunRequest>();
  auto arguments = std::make_shared<JobArguments>();
  auto seconds = std::make_shared<double>(10);
  CLI::App* command = app.add_subcommand(
      "profile",
      "measure this machine and data set, for `penstock plan`: one loader of one thread makes samples for a while");
  add_job_arguments(*command, *arguments);
  command->add_option("-o,--output", request->profile_file, "file to write")->type_name("FILE")->required();
  command->add_option("--seconds", *seconds, "how long")->capture_default_str()->check(some_seconds());
  command->footer(
      "`penstock run --profile FILE` records the same of a whole job, and how long its program takes for a batch.");
  command->callback([=, &chosen] {
    chosen.run = [=, &chosen] {
      request->job_file = arguments->file;
      // Ahead of the user's own overrides, which win.
      request->overrides = {"loader.threads=1", "roles.trainers=1"};
      request->overrides.insert(request->overrides.end(), arguments->overrides.begin(), arguments->overrides.end());
      request->quiet = true;
      request->epochs = 1'000'000;
      request->seconds = *seconds;
      check_output_file(request->profile_file);
      request->only_split = main_split(load_job(arguments->file, arguments->overrides));
      request->profiled_by = "penstock profile";
      request->end = chosen.end;
      const int code = run_job(*request);
      if (code != 0) return code;
      const Profile profile = read_profile(request->profile_file);
      std::printf(
          "%s: %lld samples, %.2f ms of a thread each; encoded %.0f kB, decoded %.0f kB; a receiver takes %.2f ms for "
          "one\n",
          request->profile_file.c_str(), static_cast<long long>(profile.sample_ns.count()),
          profile.sample_ns.mean() * 1e-6, profile.sample_bytes.mean() * 1e-3,
          static_cast<double>(profile.payload_bytes) * 1e-3,
          profile.overhead.receiver_ns_per_byte * static_cast<double>(profile.payload_bytes) * 1e-6);
      return 0;
    };
  });
}

}  // namespace penstock
