#include "runtime/datasets/source.h"

#include <algorithm>
#include <iterator>

#include "runtime/datasets/cached_source.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/files_here.h"
#include "runtime/datasets/image_folder.h"
#include "runtime/datasets/index_file.h"
#include "runtime/datasets/pack_source.h"
#include "runtime/datasets/paired_folders.h"
#include "runtime/datasets/python_source.h"
#include "runtime/datasets/table_source.h"
#include "runtime/job/job.h"

namespace penstock {

namespace {

std::unique_ptr<Source> open_files(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files,
                                   const SourceBudget& budget) {
  if (!dataset.pack.empty()) return open_pack(dataset.pack, limits, files, dataset.local);
  const bool container = !container_kind(dataset).empty();
  if (container || !dataset.index.empty()) {
    auto shards = std::make_shared<ShardFiles>(files, static_cast<uint64_t>(budget.spool_bytes));
    SampleTable table = dataset.index.empty() ? list_samples({dataset, *shards, files, limits.max_encoded_bytes})
                                              : open_index(dataset, limits, files);
    const std::string root = container ? container_root(dataset) : dataset.folder;
    ReadableSamples here;
    if (dataset.local) here = samples_here(table, root, files);
    auto source = std::make_unique<TableSource>(std::move(table), root, limits, std::move(shards), files);
    if (dataset.local) source->only(std::move(here));
    return source;
  }
  if (dataset.is_paired()) return std::make_unique<PairedFolders>(dataset, limits.max_encoded_bytes, files);
  if (!dataset.folder.empty()) {
    return std::make_unique<ImageFolder>(dataset.folder, limits.max_encoded_bytes, files, part_of(dataset));
  }
  throw Error(ErrorKind::usage, "'" + dataset.title() + "' is a data set of a kind without a Source");
}

}  // namespace

std::unique_ptr<Source> make_source(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files,
                                    std::shared_ptr<const PythonWorkers> workers, const SourceBudget& budget) {
  if (dataset.is_python()) return std::make_unique<PythonSource>(dataset, limits, std::move(workers));
  const auto given = [&](const DatasetKind& kind) { return !(dataset.*kind.value).empty(); };
  if (std::none_of(std::begin(kDatasetKinds), std::end(kDatasetKinds), given)) {
    throw Error(ErrorKind::dataset, "no data set is named",
                "write dataset: {folder: DIR}, {tar: \"shards/{000..012}.tar\"} or {python: \"module:name\"}");
  }
  std::unique_ptr<Source> source;
  try {
    source = open_files(dataset, limits, files, budget);
  } catch (const FileError& error) {
    if (may_pass(error.code())) throw;
    // At the start a file that is not there is a mistake about the data; later it is trouble of the machine.
    throw Error(ErrorKind::dataset, error.message(), error.remedy());
  }
  if (budget.cache_bytes > 0) source = std::make_unique<CachedSource>(std::move(source), files, budget.cache_bytes);
  return source;
}

}  // namespace penstock
