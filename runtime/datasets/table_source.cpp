#include "runtime/datasets/table_source.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock {

TableSource::TableSource(SampleTable table, std::string root, const DecodeLimits& limits,
                         std::shared_ptr<ShardFiles> shards, FileSystem& files)
    : TabulatedSource(std::move(table), root, limits),
      root_(std::move(root)),
      shards_(std::move(shards)),
      files_(files),
      pictures_are_checked_(table_.facts().kind == "tfrecord") {}

std::shared_ptr<const FileReader> TableSource::shard(uint32_t file) const {
  const TableFile& facts = table_.facts().files[file];
  std::shared_ptr<const FileReader> reader = shards_->get(paths_[file], facts.codec);
  if (reader->size() != facts.content_bytes) {
    throw FileError(0, paths_[file],
                    "'" + paths_[file] + "' has " + std::to_string(reader->size()) + " bytes, and had " +
                        std::to_string(facts.content_bytes) + " when its samples were listed",
                    "something changes the data set while it is in use");
  }
  return reader;
}

void TableSource::read_place(const FieldPlace& place, std::span<std::byte> into) const {
  if (place.file != kInTable) {
    shard(place.file)->read_at(place.offset, into);
  } else if (!into.empty()) {
    std::memcpy(into.data(), table_.value(place).data(), into.size());
  }
}

SampleStatus check_pixels(const PixelFormat& pixels, const DecodeLimits& limits) {
  const bool fits = pixels.width <= limits.max_side && pixels.height <= limits.max_side &&
                    int64_t{pixels.width} * pixels.height <= limits.max_pixels;
  if (fits) return SampleStatus::good();
  return SampleStatus::bad("image of " + std::to_string(pixels.width) + "x" + std::to_string(pixels.height) +
                           " pixels: above limits.max_side (" + std::to_string(limits.max_side) +
                           ") or limits.max_pixels (" + std::to_string(limits.max_pixels) + ")");
}

void pixels_to_rgb(const PixelFormat& pixels, std::span<const std::byte> stored, std::byte* rgb) {
  const size_t count = static_cast<size_t>(pixels.width) * static_cast<size_t>(pixels.height);
  const size_t plane = pixels.layout == PixelLayout::grey ? 0 : count;
  for (size_t i = 0; i < count; ++i) {
    for (size_t channel = 0; channel < 3; ++channel) rgb[3 * i + channel] = stored[channel * plane + i];
  }
}

SampleStatus TableSource::read(int64_t index, std::vector<std::byte>& bytes) const {
  check_encoded(index);
  const SampleRow& row = table_.row(index);
  bytes.clear();
  if (row.file == kOwnFile) {
    if (!files_.read_file(under_root(root_, table_.key(index)), limits_.max_encoded_bytes, bytes)) {
      return SampleStatus::bad("the file is larger than limits.max_encoded_bytes (" +
                               std::to_string(limits_.max_encoded_bytes) + " bytes)");
    }
    return SampleStatus::good();
  }
  if (row.bytes > static_cast<uint64_t>(limits_.max_encoded_bytes)) {
    return SampleStatus::bad("the image has " + std::to_string(row.bytes) +
                             " bytes, more than limits.max_encoded_bytes (" +
                             std::to_string(limits_.max_encoded_bytes) + ")");
  }
  bytes.resize(static_cast<size_t>(row.bytes));
  shard(row.file)->read_at(row.offset, bytes);
  if (pictures_are_checked_ && row.check != 0 && row.check != check_of(bytes)) {
    throw FileError(EIO, paths_[row.file],
                    "'" + paths_[row.file] + "' is damaged: the picture of '" + key(index) + "' at byte " +
                        std::to_string(row.offset) + " is not the one that was there when its samples were listed",
                    "copy the file again, or make it again");
  }
  return SampleStatus::good();
}

SampleStatus TableSource::load(const DrawKey& key, SourceSample& sample) const {
  const auto index = static_cast<int64_t>(key.index);
  check_index(index);
  const TableFacts& facts = table_.facts();
  const SampleRow& row = table_.row(index);
  sample.reset(row.label);
  std::vector<std::byte>& storage = sample.storage;
  size_t image_bytes = 0;
  if (facts.pixels.layout == PixelLayout::encoded) {
    SampleStatus status = read(index, storage);
    if (!status.ok()) return status;
    image_bytes = storage.size();
  } else {
    // One size for all: a few MB of gzip can say that its pictures have gigabytes.
    if (SampleStatus status = check_pixels(facts.pixels, limits_); !status.ok()) return status;
    thread_local std::vector<std::byte> stored;
    stored.resize(static_cast<size_t>(row.bytes));
    shard(row.file)->read_at(row.offset, stored);
    sample.width = facts.pixels.width;
    sample.height = facts.pixels.height;
    image_bytes = static_cast<size_t>(sample.width) * static_cast<size_t>(sample.height) * 3;
    storage.resize(image_bytes);
    pixels_to_rgb(facts.pixels, stored, storage.data());
  }
  if (shown_ < facts.fields.size() && facts.fields[shown_].name == kRestartPoints) {
    const FieldPlace& place = table_.place(shown_, index);
    // Damage before a crop that decoding recovers from would otherwise show without an index, and not with one.
    if (place.file == kInTable && place.bytes > 0 &&
        (pictures_are_checked_ || row.check == 0 || row.check == check_of(std::span(storage).first(image_bytes)))) {
      sample.restart_points = table_.value(place);
    }
  }
  size_t field_bytes = 0;
  for (size_t f = 0; f < shown_; ++f) {
    const uint64_t bytes = table_.place(f, index).bytes;
    if (!facts.fields[f].fixed_size() && bytes > static_cast<uint64_t>(limits_.max_field_bytes)) {
      return SampleStatus::bad("field '" + facts.fields[f].name + "' has " + std::to_string(bytes) +
                               " bytes, more than limits.max_field_bytes (" + std::to_string(limits_.max_field_bytes) +
                               ")");
    }
    field_bytes += static_cast<size_t>(bytes);
  }
  const size_t fields_begin = image_bytes + PixelBuffer::kPadding;
  storage.resize(fields_begin + field_bytes);
  sample.image = std::span(storage).first(image_bytes);
  size_t at = fields_begin;
  for (size_t f = 0; f < shown_; ++f) {
    const FieldPlace& place = table_.place(f, index);
    const auto value = std::span(storage).subspan(at, static_cast<size_t>(place.bytes));
    read_place(place, value);
    sample.fields.push_back(value);
    at += value.size();
  }
  return SampleStatus::good();
}

void TableSource::list_reads(int64_t index, std::vector<FilePart>& parts) const {
  if (index < 0 || index >= size()) return;
  const SampleRow& row = table_.row(index);
  if (row.file == kOwnFile) {
    FilePart& part = parts.emplace_back();
    part.path = under_root(root_, table_.key(index));
    part.max_bytes = limits_.max_encoded_bytes;
  }
  const auto add = [&](uint32_t file, uint64_t offset, uint64_t bytes, int64_t limit) {
    // Decompressed shards were written a moment ago, to a local disk.
    if (bytes == 0 || bytes > static_cast<uint64_t>(limit) || table_.facts().files[file].codec != Codec::none) return;
    parts.push_back({paths_[file], offset, bytes, 0, shards_->opened(paths_[file])});
  };
  if (row.file != kOwnFile) add(row.file, row.offset, row.bytes, limits_.max_encoded_bytes);
  for (size_t f = 0; f < shown_; ++f) {
    const FieldPlace& place = table_.place(f, index);
    if (place.file != kInTable) add(place.file, place.offset, place.bytes, limits_.max_encoded_bytes);
  }
}

}  // namespace penstock
