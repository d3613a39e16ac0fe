#include "runtime/datasets/tabulated_source.h"

#include <utility>

#include "runtime/base/error.h"

namespace penstock {

std::string under_root(const std::string& root, std::string_view path) {
  return !path.empty() && path.front() == '/' ? std::string(path) : root + "/" + std::string(path);
}

TabulatedSource::TabulatedSource(SampleTable table, const std::string& root, const DecodeLimits& limits)
    : table_(std::move(table)),
      limits_(limits),
      fields_({{"image", FieldKind::image, DType::uint8, {}}, {"label", FieldKind::tensor, DType::int64, {}}}) {
  const TableFacts& facts = table_.facts();
  for (const TableFile& file : facts.files) paths_.push_back(under_root(root, file.path));
  while (shown_ < facts.fields.size() && !is_hidden(facts.fields[shown_])) ++shown_;
  fields_.insert(fields_.end(), facts.fields.begin(), facts.fields.begin() + static_cast<std::ptrdiff_t>(shown_));
}

void TabulatedSource::check_index(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw Error(ErrorKind::usage, "sample " + std::to_string(index) + " is outside the data set of " +
                                      std::to_string(size()) + " samples");
  }
}

void TabulatedSource::check_encoded(int64_t index) const {
  check_index(index);
  if (table_.facts().pixels.layout != PixelLayout::encoded) {
    throw Error(ErrorKind::usage, "sample " + key(index) + " is not encoded");
  }
}

std::string TabulatedSource::key(int64_t index) const {
  check_index(index);
  return std::string(table_.key(index));
}

int64_t TabulatedSource::label(int64_t index) const {
  check_index(index);
  return table_.row(index).label;
}

int64_t TabulatedSource::encoded_size(int64_t index) const {
  check_index(index);
  return static_cast<int64_t>(table_.row(index).bytes);  // 0 for a file of its own that nobody has looked at
}

}  // namespace penstock
