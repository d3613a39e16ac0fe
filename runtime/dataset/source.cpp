#include "runtime/dataset/source.h"

#include "runtime/config/job.h"
#include "runtime/dataset/image_folder.h"

namespace penstock {

std::unique_ptr<Source> make_source(const DatasetSpec& dataset, const DecodeLimits& limits, FileSystem& files) {
  if (dataset.folder.empty()) {
    throw Error(ErrorKind::dataset, "no data set is named", "write dataset: {folder: DIR}");
  }
  return std::make_unique<ImageFolder>(dataset.folder, limits.max_encoded_bytes, files);
}

}  // namespace penstock
