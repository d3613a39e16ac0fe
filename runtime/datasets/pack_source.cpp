#include "runtime/datasets/pack_source.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/datasets/files_here.h"
#include "runtime/datasets/table_source.h"

namespace penstock {

PackSource::PackSource(SampleTable table, const std::string& folder, const DecodeLimits& limits, FileSystem& files)
    : TabulatedSource(std::move(table), folder, limits), shards_(files, 0) {}

// Before memory is taken.
SampleStatus PackSource::check_sizes(int64_t index) const {
  const TableFacts& facts = table_.facts();
  if (facts.pixels.layout != PixelLayout::encoded) {
    if (SampleStatus status = check_pixels(facts.pixels, limits_); !status.ok()) return status;
  } else if (table_.row(index).bytes > static_cast<uint64_t>(limits_.max_encoded_bytes)) {
    return SampleStatus::bad("the image has " + std::to_string(table_.row(index).bytes) +
                             " bytes, more than limits.max_encoded_bytes (" +
                             std::to_string(limits_.max_encoded_bytes) + ")");
  }
  for (size_t f = 0; f < facts.fields.size(); ++f) {
    const FieldSpec& field = facts.fields[f];
    if (f >= shown_) {  // restart points are part of the picture
      const FieldPlace& place = table_.place(f, index);
      if (place.file == kInTable || place.bytes <= static_cast<uint64_t>(limits_.max_encoded_bytes)) continue;
      return SampleStatus::bad("'" + field.name + "' has " + std::to_string(place.bytes) +
                               " bytes, more than limits.max_encoded_bytes (" +
                               std::to_string(limits_.max_encoded_bytes) + ")");
    }
    const bool picture = field.kind == FieldKind::image || field.kind == FieldKind::mask;
    if (!picture && field.fixed_size()) continue;
    const int64_t most = picture ? limits_.max_encoded_bytes : limits_.max_field_bytes;
    const uint64_t bytes = table_.place(f, index).bytes;
    if (bytes <= static_cast<uint64_t>(most)) continue;
    return SampleStatus::bad("field '" + field.name + "' has " + std::to_string(bytes) + " bytes, more than limits." +
                             (picture ? "max_encoded_bytes (" : "max_field_bytes (") + std::to_string(most) + ")");
  }
  return SampleStatus::good();
}

uint64_t PackSource::read_record(int64_t index, std::vector<std::byte>& bytes, size_t padding) const {
  const PackRecord record = record_of(table_, index);
  const SampleRow& row = table_.row(index);
  const std::string& path = paths_[row.file];
  const std::shared_ptr<const FileReader> shard = shards_.get(path, Codec::none);
  bytes.resize(static_cast<size_t>(record.bytes) + padding);
  const auto whole = std::span(bytes).first(static_cast<size_t>(record.bytes));
  shard->read_at(record.offset, whole);
  if (check_of(whole) != row.check) {
    throw FileError(EIO, path,
                    "'" + path + "' is damaged: the record of sample '" + key(index) + "' at byte " +
                        std::to_string(record.offset) + " has a wrong checksum",
                    "copy the shard again, or make the pack again; `penstock check DIR` lists all damaged records");
  }
  return record.bytes;
}

SampleStatus PackSource::read(int64_t index, std::vector<std::byte>& bytes) const {
  check_encoded(index);
  bytes.clear();
  if (SampleStatus status = check_sizes(index); !status.ok()) return status;
  (void)read_record(index, bytes, 0);
  bytes.resize(static_cast<size_t>(table_.row(index).bytes));
  return SampleStatus::good();
}

SampleStatus PackSource::load(const DrawKey& key, SourceSample& sample) const {
  const auto index = static_cast<int64_t>(key.index);
  check_index(index);
  const TableFacts& facts = table_.facts();
  const SampleRow& row = table_.row(index);
  sample.reset(row.label);
  if (SampleStatus status = check_sizes(index); !status.ok()) return status;
  const auto image_bytes = static_cast<size_t>(row.bytes);
  const bool encoded = facts.pixels.layout == PixelLayout::encoded;
  // Pixels become rows of RGB, and what they are made of stays beside them.
  if (!encoded) sample.parts.resize(1);
  std::vector<std::byte>& record = encoded ? sample.storage : sample.parts[0];
  (void)read_record(index, record, PixelBuffer::kPadding);
  if (encoded) {
    sample.image = std::span(record).first(image_bytes);
  } else {
    sample.width = facts.pixels.width;
    sample.height = facts.pixels.height;
    const size_t rgb = static_cast<size_t>(sample.width) * static_cast<size_t>(sample.height) * 3;
    sample.storage.resize(rgb + PixelBuffer::kPadding);
    pixels_to_rgb(facts.pixels, std::span(record).first(image_bytes), sample.storage.data());
    sample.image = std::span(sample.storage).first(rgb);
  }
  for (size_t f = 0; f < facts.fields.size(); ++f) {
    const FieldPlace& place = table_.place(f, index);
    const std::span<const std::byte> value =
        place.file == kInTable ? table_.value(place)
                               : std::span<const std::byte>(record).subspan(
                                     static_cast<size_t>(place.offset - row.offset), static_cast<size_t>(place.bytes));
    if (f < shown_) {
      sample.fields.push_back(value);
    } else if (facts.fields[f].name == kRestartPoints) {
      sample.restart_points = value;
    }
  }
  return SampleStatus::good();
}

void PackSource::list_reads(int64_t index, std::vector<FilePart>& parts) const {
  if (index < 0 || index >= size() || !check_sizes(index).ok()) return;
  const PackRecord record = record_of(table_, index);
  const std::string& path = paths_[table_.row(index).file];
  parts.push_back({path, record.offset, record.bytes, 0, shards_.opened(path)});
}

std::unique_ptr<Source> open_pack(const std::string& folder, const DecodeLimits& limits, FileSystem& files,
                                  bool local) {
  SampleTable table = open_pack_table(folder, files, local);
  ReadableSamples here;
  if (local) here = samples_here(table, folder, files);
  auto source = std::make_unique<PackSource>(std::move(table), folder, limits, files);
  if (local) source->only(std::move(here));
  return source;
}

}  // namespace penstock
