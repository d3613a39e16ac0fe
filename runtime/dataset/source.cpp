#include "runtime/dataset/source.h"

#include "runtime/config/job.h"
#include "runtime/dataset/image_folder.h"
#include "runtime/dataset/paired_folders.h"
#include "runtime/dataset/python_source.h"

namespace penstock {

std::unique_ptr<Source> make_source(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files,
                                    std::shared_ptr<const PythonWorkers> workers) {
  if (dataset.is_python()) return std::make_unique<PythonSource>(dataset, limits, std::move(workers));
  if (!dataset.images.empty()) return std::make_unique<PairedFolders>(dataset, limits.max_encoded_bytes, files);
  if (dataset.folder.empty()) {
    throw Error(ErrorKind::dataset, "no data set is named", "write dataset: {folder: DIR}, or {python: \"module:name\"}");
  }
  return std::make_unique<ImageFolder>(dataset.folder, limits.max_encoded_bytes, files);
}

}  // namespace penstock
