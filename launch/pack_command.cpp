// `penstock pack` and `penstock unpack`: a data set into large shards with its index in them, and its files out again.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "launch/command.h"
#include "launch/contained_folder.h"
#include "launch/dataset_given.h"
#include "launch/pack_input.h"
#include "launch/pack_writer.h"
#include "launch/progress_line.h"
#include "launch/tar_pack.h"
#include "launch/unpack.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/utf8.h"
#include "runtime/job/job.h"
#include "runtime/loader/loader.h"
#include "runtime/process/signals.h"

namespace penstock {
namespace {

constexpr size_t kMostListed = 50;

struct PackRequest {
  std::string source;
  std::string target;
  std::vector<std::string> overrides;
  std::string split;
  uint64_t shard_bytes = uint64_t{1} << 30;
  int threads = 0;
  bool rewrite = false;
  bool verify = true;
  bool restart_points = true;
  bool tar = false;
  bool quiet = false;
  bool json = false;
};

// What the command line names as SRC.
struct DatasetChosen {
  DatasetSpec dataset;
  Job job;
};

DatasetChosen dataset_of(const PackRequest& request) {
  std::error_code ignored;
  if (std::filesystem::is_directory(request.source, ignored)) {
    if (!request.split.empty() || !request.overrides.empty()) {
      throw Error(ErrorKind::usage,
                  "--split and overrides belong to a job file, and '" + request.source + "' is a folder");
    }
    std::string line;
    return {dataset_in(request.source, line), Job{}};
  }
  refuse_missing(request.source, "a folder of data", "a job file");
  Job job = load_job(request.source, request.overrides);
  std::string split = request.split;
  if (split.empty() && job.splits.size() == 1) split = job.splits.begin()->first;
  if (split.empty()) {
    throw Error(
        ErrorKind::usage,
        "'" + request.source + "' has " + std::to_string(job.splits.size()) + " splits, and a pack holds one data set",
        "say --split NAME");
  }
  DatasetSpec dataset = resolve_split(job, split).split.dataset;
  return {std::move(dataset), std::move(job)};
}

// Ctrl-C and SIGTERM, asked for between samples.
class Interruption {
 public:
  Interruption() : signals_({SIGINT, SIGTERM}) {}
  bool came() {
    while (const auto arrived = signals_.next()) signal_ = *arrived;
    return signal_ != 0;
  }
  int exit_code() const { return 128 + signal_; }

 private:
  SignalFd signals_;
  int signal_ = 0;
};

void print_bad(const PackInput& input, const PackResult& result) {
  size_t listed = 0;
  for (const auto& [index, why] : result.bad) {
    if (++listed > kMostListed) {
      std::printf("    ... and %zu more\n", result.bad.size() - kMostListed);
      return;
    }
    std::printf("    '%s': %s\n", without_controls(input.table().key(index)).c_str(), without_controls(why).c_str());
  }
}

// Lists and CSV files may name files anywhere.
struct NamesThatLeadOut {
  int64_t count = 0;
  std::string first;

  explicit NamesThatLeadOut(const SampleTable& table) {
    for (int64_t i = 0; i < table.size(); ++i) {
      std::string name(table.key(i));
      if (!unsafe_name(name).empty() && count++ == 0) first = std::move(name);
    }
  }
};

void print_report(const PackRequest& request, const PackInput& input, const PackResult& result) {
  const NamesThatLeadOut leading_out(input.table());
  if (request.json) {
    nlohmann::json bad = nlohmann::json::array();
    for (const auto& [index, why] : result.bad) {
      bad.push_back({{"index", index}, {"key", std::string(input.table().key(index))}, {"reason", why}});
    }
    const nlohmann::json report = {{"finished", result.finished},
                                   {"samples", result.samples},
                                   {"found", result.found},
                                   {"shards", result.shards},
                                   {"bytes", result.bytes},
                                   {"source_bytes", result.source_bytes},
                                   {"rewritten", result.rewritten},
                                   {"restart_points", result.entered},
                                   {"verified", request.verify},
                                   {"bad", bad},
                                   {"names_that_lead_out", leading_out.count}};
    std::printf("%s\n", json_text_replacing(report).c_str());
    return;
  }
  std::printf("%s: %lld samples of %s in %zu %s, %.1f MB\n", without_controls(request.target).c_str(),
              static_cast<long long>(result.samples), without_controls(input.title()).c_str(), result.shards,
              result.shards == 1 ? "shard" : "shards", static_cast<double>(result.bytes) / 1e6);
  if (result.found > 0) {
    std::printf("  %lld of them were packed before\n", static_cast<long long>(result.found));
  }
  std::string made;
  if (!request.tar) made += "restart points for " + std::to_string(result.entered) + ", ";
  if (request.rewrite) made += std::to_string(result.rewritten) + " JPEG files rewritten with the same pixels, ";
  std::printf("  %s%zu unusable%s\n", made.c_str(), result.bad.size(),
              !request.verify          ? " by their headers (--no-verify: none was decoded)"
              : result.bad.size() == 0 ? ": every picture was decoded"
                                       : ", packed as they are:");
  print_bad(input, result);
  if (request.tar) {
    const std::string names = std::filesystem::absolute(request.target).lexically_normal().string() + "/shard-*.tar";
    std::printf("  dataset: {tar: %s}\n", yaml_path(names).c_str());
    return;
  }
  if (leading_out.count > 0) {
    std::printf(
        "  %lld samples have names that lead out of a folder, as '%s': the pack can be read, but not unpacked\n",
        static_cast<long long>(leading_out.count), without_controls(leading_out.first).c_str());
  }
  std::printf("  dataset: {pack: %s}\n",
              yaml_path(std::filesystem::absolute(request.target).lexically_normal()).c_str());
}

int pack(const PackRequest& request) {
  if (request.target.empty()) throw Error(ErrorKind::usage, "the folder of the pack has an empty name");
  const DatasetChosen chosen = dataset_of(request);
  const PackInput input(chosen.dataset, chosen.job.limits,
                        static_cast<uint64_t>(loader_options(chosen.job).sources.spool_bytes), request.tar);
  PackOptions options;
  options.folder = std::filesystem::absolute(request.target).lexically_normal().string();
  if (options.folder.size() > 1 && options.folder.back() == '/') options.folder.pop_back();
  options.shard_bytes = request.shard_bytes;
  options.content = {request.rewrite, request.verify, request.restart_points && !request.tar};
  options.limits = chosen.job.limits;
  options.threads = request.threads;
  Interruption interruption;  // before there are threads: they must not take the signals
  std::unique_ptr<ProgressLine> line;
  PackProgress last;
  options.go_on = [&](const PackProgress& progress) {
    // Each with a pace of its own: reading is faster than making.
    if (!line || progress.checking != last.checking) {
      line = std::make_unique<ProgressLine>(progress.checking ? "check" : "pack", progress.total, !request.quiet);
    }
    last = progress;
    line->show(progress.samples, progress.bytes);
    return !interruption.came();
  };
  const PackResult result = request.tar ? write_tar_shards(input, options) : write_pack(input, options);
  line.reset();
  if (!result.again.empty()) std::fprintf(stderr, "penstock: made again: %s\n", result.again.c_str());
  if (!result.finished) {
    std::fprintf(stderr, "penstock: interrupted with %zu whole shards; the same command goes on from there\n",
                 last.shards);
    return interruption.exit_code();
  }
  print_report(request, input, result);
  return 0;
}

struct UnpackRequest {
  UnpackOptions options;
  bool quiet = false;
};

int unpack_files(const UnpackRequest& request) {
  if (request.options.folder.empty()) throw Error(ErrorKind::usage, "the folder to write to has an empty name");
  UnpackOptions options = request.options;
  Interruption interruption;
  std::unique_ptr<ProgressLine> line;
  options.go_on = [&](int64_t done, int64_t total, uint64_t bytes) {
    if (!line) line = std::make_unique<ProgressLine>("unpack", total, !request.quiet);
    line->show(done, bytes);
    return !interruption.came();
  };
  const UnpackResult result = unpack(options);
  line.reset();
  if (!result.finished) {
    std::fprintf(stderr, "penstock: interrupted after %lld samples; the same command goes on from there\n",
                 static_cast<long long>(result.samples));
    return interruption.exit_code();
  }
  std::printf("%s: %lld files of %lld samples, %.1f MB", options.folder.c_str(), static_cast<long long>(result.written),
              static_cast<long long>(result.samples), static_cast<double>(result.bytes) / 1e6);
  if (result.there > 0) std::printf(", %lld were there", static_cast<long long>(result.there));
  std::printf("\n");
  if (result.rewritten > 0) {
    std::printf(
        "  %lld JPEG files were rewritten when they were packed: the same pixels, other bytes than the originals\n",
        static_cast<long long>(result.rewritten));
  }
  constexpr size_t kNamed = 20;
  for (size_t i = 0; i < std::min(result.damaged.size(), kNamed); ++i) {
    std::fprintf(stderr, "penstock: %s\n", without_controls(result.damaged[i]).c_str());
  }
  if (result.damaged.empty()) return 0;
  std::fprintf(stderr, "penstock: %zu damaged samples are left out\n  help: `penstock check %s` lists them all\n",
               result.damaged.size(), options.pack.c_str());
  return 1;
}

}  // namespace

void add_pack(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<PackRequest>();
  CLI::App* command = app.add_subcommand("pack", "write a data set to large shards with its index in them");
  command->add_option("src", request->source, "folder of data, or a job file")->required()->type_name("DIR|JOB.yaml");
  command
      ->add_option("dst", request->target,
                   "folder of the pack or the tar shards: new, empty, or with a part of this pack")
      ->required()
      ->type_name("DIR");
  command->add_option("overrides", request->overrides, "key.sub=value, over the job file and the environment");
  command->add_option("--split", request->split, "of a job file: the split whose data set is packed");
  command
      ->add_option("--shard-size", request->shard_bytes,
                   "bytes of a shard, as 500MB or 1GiB; a larger sample makes a larger one")
      ->transform(some_bytes())
      ->default_str("1GiB");
  command->add_option("--threads", request->threads, "threads that look at samples; 0: one per core")
      ->capture_default_str()
      ->check(not_negative());
  command->add_flag(
      "--rewrite", request->rewrite,
      "write JPEG files anew where no pixel can change: progressive ones as baseline, with smaller Huffman codes");
  command->add_flag_callback(
      "--no-verify", [=] { request->verify = false; }, "do not decode every picture once");
  command->add_flag_callback(
      "--no-restart-points", [=] { request->restart_points = false; },
      "leave out where decoding may enter JPEG files at a crop (one per cent of their bytes)");
  command->add_flag("--tar", request->tar,
                    "plain tar shards, which tar and WebDataset read, in place of a pack; of a pack as well");
  command->add_flag("--json", request->json, "the report as one JSON object");
  command->add_flag("--quiet", request->quiet, "no progress");
  command->footer(
      "Examples:\n  penstock pack photos/train train.pack --rewrite\n  penstock pack train.pack train.shards --tar\n"
      "  penstock pack job.yaml train.pack --split train\n  penstock init --data train.pack > job.yaml");
  command->callback([=, &chosen] { chosen.run = [=] { return pack(*request); }; });
}

void add_unpack(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<UnpackRequest>();
  CLI::App* command = app.add_subcommand("unpack", "write the files of a pack's samples to a folder");
  command->add_option("pack", request->options.pack, "folder that `penstock pack` made")->required()->type_name("PACK");
  command->add_option("dir", request->options.folder, "folder to write to")->required()->type_name("DIR");
  command->add_flag("--overwrite", request->options.overwrite, "replace files that are in the way");
  command->add_flag("--quiet", request->quiet, "no progress");
  command->footer("Example:\n  penstock unpack train.pack photos");
  command->callback([=, &chosen] { chosen.run = [=] { return unpack_files(*request); }; });
}

}  // namespace penstock
