// `penstock index`: where each sample of a data set lies, in a file that every opening maps.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "launch/command.h"
#include "launch/dataset_given.h"
#include "launch/parquet_data.h"
#include "runtime/base/error.h"
#include "runtime/base/several_threads.h"
#include "runtime/base/utf8.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/index_file.h"
#include "runtime/datasets/table_source.h"
#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/job/job.h"
#include "runtime/loader/loader.h"

namespace penstock {
namespace {

struct IndexRequest {
  std::string out;
  std::string split;
  bool headers = true;
  bool restart_points = true;
};

struct Summary {
  int64_t bytes = 0;
  int64_t unusable = 0;
  int64_t entered = 0;  // pictures with restart points
  std::vector<int64_t> pixels;
};

// Sizes of files and of pictures, and where decoding may enter them, into the table.
Summary look_at_pictures(TableBuilder& builder, const Source& source, const DecodeLimits& limits, bool restart_points) {
  std::vector<std::string> points(static_cast<size_t>(restart_points ? source.size() : 0));
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> unusable{0};
  for_each_on_threads(static_cast<size_t>(source.size()), number_of_cores(), [&] {
    return [&, sample = SourceSample()](size_t i) mutable {
      const auto index = static_cast<int64_t>(i);
      DrawKey key;
      key.index = static_cast<uint64_t>(index);
      SampleStatus status = source.load(key, sample);
      ImageHeader header{ImageFormat::unknown, sample.width, sample.height};
      if (status.ok() && sample.width == 0) status = read_header(sample.image, limits, header);
      SampleRow& row = builder.row(index);  // each thread has rows of its own
      if (row.file == kOwnFile) row.bytes = sample.image.size();
      bytes += static_cast<int64_t>(sample.image.size());
      if (status.ok()) {
        builder.header(index, static_cast<uint32_t>(header.width), static_cast<uint32_t>(header.height));
        SideIndex found;
        if (restart_points && header.format == ImageFormat::jpeg && build_side_index(sample.image, {}, found)) {
          points[static_cast<size_t>(index)] = found.serialise();
          row.check = check_of(sample.image);
        }
      } else {
        ++unusable;
      }
    };
  });
  Summary out;
  out.bytes = bytes;
  out.unusable = unusable;
  out.entered = std::count_if(points.begin(), points.end(), [](const std::string& text) { return !text.empty(); });
  if (out.entered > 0) builder.restart_points(points);
  for (int64_t i = 0; i < builder.size(); ++i) {
    out.pixels.push_back(int64_t{builder.row(i).width} * builder.row(i).height);
  }
  return out;
}

// Before the pictures are looked at, which may take hours. Of class folders the index notes when each was changed last,
// and writing it there would be a change.
void check_place(const DatasetSpec& dataset, const std::string& out) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(out, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    throw Error(ErrorKind::usage, "the index '" + out + "' would replace a folder or a device", "name a file");
  }
  const std::filesystem::path parent = std::filesystem::path(out).parent_path();
  if (!parent.empty() && !std::filesystem::is_directory(parent, ignored)) {
    throw Error(ErrorKind::usage,
                "the index '" + out + "' cannot be written: there is no folder '" + parent.string() + "'",
                "make the folder first");
  }
  // Before all pictures are looked at. Who is refused here would be at the end.
  if (::access(parent.empty() ? "." : parent.c_str(), W_OK | X_OK) != 0) {
    throw Error(ErrorKind::usage, "the index '" + out + "' cannot be written: " + std::strerror(errno),
                "name a file in a folder that this user may write to, with --out");
  }
  if (dataset.folder.empty()) return;
  const auto inside =
      std::filesystem::weakly_canonical(out).lexically_relative(std::filesystem::weakly_canonical(dataset.folder));
  if (inside.empty() || *inside.begin() == "..") return;
  throw Error(ErrorKind::usage,
              "the index '" + out + "' would lie in the data set's folder '" + dataset.folder +
                  "', and be old as soon as it is written",
              "write it beside the folder");
}

void make_index(const DatasetSpec& asked, const std::string& out, const Job& job, const IndexRequest& request) {
  DatasetSpec dataset = asked;
  dataset.index.clear();
  check_place(dataset, out);
  auto shards =
      std::make_shared<ShardFiles>(posix_file_system(), static_cast<uint64_t>(loader_options(job).sources.spool_bytes));
  SampleTable table = [&] {
    if (!dataset.parquet.empty()) return copy_parquet(dataset, out, job.python, job.limits);
    try {
      return index_table(dataset, job.limits, posix_file_system(), *shards);
    } catch (const FileError& error) {
      // At the start a file that is not there is a mistake about the data.
      throw Error(ErrorKind::dataset, error.message(), error.remedy());
    }
  }();
  if (request.headers) {
    TableBuilder builder(table);
    const std::string root = container_kind(dataset).empty() ? dataset.folder : container_root(dataset);
    const TableSource source(std::move(table), root, job.limits, std::move(shards), posix_file_system());
    Summary summary = look_at_pictures(builder, source, job.limits, request.restart_points);
    std::sort(summary.pixels.begin(), summary.pixels.end());
    std::printf("  %.1f MB of pictures, median %.2f megapixels, %lld unusable, restart points for %lld\n",
                static_cast<double>(summary.bytes) / 1e6,
                static_cast<double>(summary.pixels[summary.pixels.size() / 2]) / 1e6,
                static_cast<long long>(summary.unusable), static_cast<long long>(summary.entered));
    table = builder.finish();
  }
  write_index(table, out);
  std::printf("%s: %lld samples of %s, %.1f MB\n", without_controls(out).c_str(), static_cast<long long>(table.size()),
              without_controls(dataset.title()).c_str(), static_cast<double>(table.bytes().size()) / 1e6);
  // A part of class folders looks like a whole.
  if (dataset.local)
    std::printf("  of what is on this node; dataset.local wants an index of all files, the same everywhere\n");
}

int index(const JobArguments& arguments, const IndexRequest& request) {
  std::error_code ignored;
  if (std::filesystem::is_directory(arguments.file, ignored)) {
    if (!request.split.empty() || !arguments.overrides.empty()) {
      throw Error(ErrorKind::usage,
                  "--split and overrides belong to a job file, and '" + arguments.file + "' is a folder");
    }
    std::string line;
    const DatasetSpec dataset = dataset_in(arguments.file, line);
    std::string folder = std::filesystem::absolute(arguments.file).lexically_normal().string();
    if (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    const std::string out = request.out.empty() ? folder + ".index" : request.out;
    make_index(dataset, out, Job{}, request);
    std::printf("  dataset: {%s, index: %s}\n", line.c_str(),
                yaml_path(std::filesystem::absolute(out).lexically_normal()).c_str());
    return 0;
  }
  refuse_missing(arguments.file, "a folder of data", "a job file");
  const Job job = load_job(arguments.file, arguments.overrides);
  if (!request.split.empty()) (void)resolve_split(job, request.split);  // refuses one that is not there
  const auto indexable = std::count_if(job.splits.begin(), job.splits.end(),
                                       [](const auto& split) { return !split.second.dataset.is_python(); });
  if (!request.out.empty() && request.split.empty() && indexable > 1) {
    throw Error(ErrorKind::usage, "--out names one file, and the job has several splits", "say --split NAME as well");
  }
  int made = 0;
  for (const auto& [name, split] : job.splits) {
    if (!request.split.empty() && name != request.split) continue;
    const std::string out = request.out.empty() ? split.dataset.index : request.out;
    if (out.empty() || split.dataset.is_python()) continue;
    make_index(split.dataset, out, job, request);
    ++made;
  }
  const bool asked_is_python = !request.split.empty() && job.splits.at(request.split).dataset.is_python();
  if (made == 0 && (indexable == 0 || asked_is_python)) {
    const std::string which = asked_is_python ? "split '" + request.split + "' of " + arguments.file + " has a data set"
                                              : "all splits of " + arguments.file + " have data sets";
    throw Error(
        ErrorKind::usage, which + " in Python, and such data sets have no index",
        "an index is for files that loaders read themselves; what makes such a data set slow is its __getitem__");
  }
  if (made == 0) {
    throw Error(ErrorKind::usage,
                "no split" + (request.split.empty() ? std::string() : " '" + request.split + "'") + " of " +
                    arguments.file + " says where its index is",
                "add index: FILE to its dataset, or say --split NAME --out FILE");
  }
  return 0;
}

}  // namespace

void add_index(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<JobArguments>();
  auto request = std::make_shared<IndexRequest>();
  CLI::App* command = app.add_subcommand("index", "write where each sample lies, so that opening need not look for it");
  add_job_arguments(*command, *arguments);
  command->add_option("--out", request->out, "file; default: the dataset's index key, or DIR.index for a folder");
  command->add_option("--split", request->split, "only this split; default: every one whose dataset has an index key");
  command->add_flag_callback(
      "--no-headers", [=] { request->headers = false; }, "do not look at the pictures at all");
  command->add_flag_callback(
      "--no-restart-points", [=] { request->restart_points = false; },
      "leave out where decoding may enter JPEG files at a crop (one per cent of their bytes)");
  command->callback([=, &chosen] { chosen.run = [=] { return index(*arguments, *request); }; });
}

}  // namespace penstock
