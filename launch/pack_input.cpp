#include "launch/pack_input.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/index_file.h"
#include "runtime/datasets/table_source.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

[[noreturn]] void too_large(const std::string& what, uint64_t bytes, uint64_t most = kMaxRecordBytes) {
  throw Error(ErrorKind::dataset, what + " has " + std::to_string(bytes) + " bytes, and a pack holds up to " +
                                      std::to_string(most) + " of one");
}

void read_whole(const std::string& what, const std::string& path, uint64_t most, std::vector<std::byte>& bytes) {
  FileSystem& files = posix_file_system();
  if (!files.read_file(path, static_cast<int64_t>(most), bytes)) {
    too_large(what + " '" + path + "'", static_cast<uint64_t>(files.file_size(path)), most);
  }
}

std::string named(std::string_view key) {
  return "sample '" + std::string(key) + "'";
}

uint64_t bytes_of(const StoredSample& sample) {
  uint64_t bytes = sample.image.size();
  for (const auto& field : sample.fields) bytes += field.size();
  return bytes;
}

void check_kind(const DatasetSpec& dataset, bool packs) {
  if (dataset.is_python()) {
    throw Error(ErrorKind::usage, "a data set in Python cannot be packed: what its code gives may differ each time",
                "write its pictures to files, or to tar or MDS shards, and pack those");
  }
  if (!dataset.pack.empty()) {
    if (packs) return;
    throw Error(ErrorKind::usage, "'" + dataset.pack + "' is a pack already",
                "to pack it otherwise, `penstock unpack` it first; --tar writes tar shards of it");
  }
  if (!dataset.parquet.empty() && dataset.index.empty()) {
    throw Error(ErrorKind::usage, "Parquet files are read through an index, and '" + dataset.parquet + "' has none",
                "run `penstock index` first, and pack a job file whose dataset has parquet and index");
  }
  if (dataset.folder.empty() && !dataset.is_paired() && container_kind(dataset).empty()) {
    throw Error(ErrorKind::usage, "'" + dataset.title() + "' is a data set of a kind that cannot be packed",
                "write its pictures to files, or to tar or MDS shards, and pack those");
  }
}

}  // namespace

PackInput::PackInput(const DatasetSpec& dataset, const DecodeLimits& limits, uint64_t spool_bytes, bool packs)
    : dataset_(dataset), shards_(std::make_shared<ShardFiles>(posix_file_system(), spool_bytes)) {
  check_kind(dataset, packs);
  FileSystem& files = posix_file_system();
  try {
    if (dataset.is_paired()) {
      pairs_ = std::make_unique<PairedFolders>(dataset, limits.max_encoded_bytes, files);
      root_ = dataset.images;
      TableBuilder builder("images");
      for (size_t f = 2; f < pairs_->fields().size(); ++f) builder.add_field(pairs_->fields()[f]);
      builder.facts().labelled = false;
      for (int64_t i = 0; i < pairs_->size(); ++i) {
        builder.add(pairs_->key(i), 0, kOwnFile, 0, 0);
        for (size_t f = 2; f < pairs_->fields().size(); ++f) builder.place(f - 2, kInTable, 0, 0);
      }
      table_ = std::make_unique<const SampleTable>(builder.finish());
    } else if (!dataset.pack.empty()) {
      root_ = dataset.pack;
      pack_ = std::make_unique<PackSource>(open_pack_table(root_, files), root_, limits, files);
      table_ = std::make_unique<const SampleTable>(pack_->table());
    } else {
      root_ = container_kind(dataset).empty() ? dataset.folder : container_root(dataset);
      table_ = std::make_unique<const SampleTable>(dataset.index.empty() ? index_table(dataset, limits, files, *shards_)
                                                                         : open_index(dataset, limits, files));
    }
  } catch (const FileError& error) {
    // At the start a file that is not there is a mistake about the data.
    throw Error(ErrorKind::dataset, error.message(), error.remedy());
  }
  const std::vector<FieldSpec>& fields = table_->facts().fields;
  while (fields_ < fields.size() && !is_hidden(fields[fields_])) ++fields_;
}

std::string PackInput::path_of(int64_t index) const {
  return under_root(root_, table_->key(index));
}

void PackInput::read_part(uint32_t file, uint64_t offset, std::span<std::byte> into) const {
  const TableFile& facts = table_->facts().files[file];
  const std::string path = under_root(root_, facts.path);
  const std::shared_ptr<const FileReader> reader = shards_->get(path, facts.codec);
  if (reader->size() != facts.content_bytes) {
    throw FileError(0, path,
                    "'" + path + "' has " + std::to_string(reader->size()) + " bytes, and had " +
                        std::to_string(facts.content_bytes) + " when its samples were listed",
                    "something changes the data set while it is packed");
  }
  reader->read_at(offset, into);
}

void PackInput::read(int64_t index, StoredSample& sample) const {
  const SampleRow& row = table_->row(index);
  sample.fields.resize(fields_);
  for (auto& field : sample.fields) field.clear();
  if (pairs_ != nullptr) {
    read_whole("picture", pairs_->root(0) + "/" + pairs_->name(0, index), kMaxRecordBytes, sample.image);
    for (size_t f = 0; f < fields_; ++f) {
      // What a table takes of a field, and so the shard that this becomes part of.
      read_whole("field", pairs_->root(f + 1) + "/" + pairs_->name(f + 1, index), kMaxFieldBytes, sample.fields[f]);
      if (bytes_of(sample) > kMaxRecordBytes) too_large(named(pairs_->key(index)), bytes_of(sample));
    }
    return;
  }
  if (pack_ != nullptr) {
    std::vector<std::byte> record;
    (void)pack_->read_record(index, record, 0);
    const auto part = [&](uint64_t offset, uint64_t size) {
      const auto begin = record.begin() + static_cast<std::ptrdiff_t>(offset - row.offset);
      return std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(size));
    };
    sample.image = part(row.offset, row.bytes);
    for (size_t f = 0; f < fields_; ++f) {
      const FieldPlace& place = table_->place(f, index);
      if (!in_table(f, index)) sample.fields[f] = part(place.offset, place.bytes);
    }
    return;
  }
  // parse() has seen to it that no place is so large that the sum runs over.
  uint64_t bytes = row.file == kOwnFile ? 0 : row.bytes;
  for (size_t f = 0; f < fields_; ++f) bytes += in_table(f, index) ? 0 : table_->place(f, index).bytes;
  if (bytes > kMaxRecordBytes) too_large(named(table_->key(index)), bytes);
  if (row.file == kOwnFile) {
    read_whole("picture", path_of(index), kMaxRecordBytes, sample.image);
    bytes += sample.image.size();
    if (bytes > kMaxRecordBytes) too_large(named(table_->key(index)), bytes);
  } else {
    sample.image.resize(static_cast<size_t>(row.bytes));
    read_part(row.file, row.offset, sample.image);
  }
  for (size_t f = 0; f < fields_; ++f) {
    if (in_table(f, index)) continue;
    const FieldPlace& place = table_->place(f, index);
    sample.fields[f].resize(static_cast<size_t>(place.bytes));
    read_part(place.file, place.offset, sample.fields[f]);
  }
}

void PackInput::stamp(int64_t index, std::vector<uint64_t>& out) const {
  const auto add = [&](const std::string& path) {
    const FileFacts facts = posix_file_system().examine(path);
    out.push_back(facts.bytes);
    out.push_back(static_cast<uint64_t>(facts.modified_ns));
  };
  if (pairs_ != nullptr) {
    for (size_t f = 0; f < pairs_->folders(); ++f) add(pairs_->root(f) + "/" + pairs_->name(f, index));
  } else if (table_->row(index).file == kOwnFile) {
    add(path_of(index));
  }
}

std::vector<std::string> PackInput::partners(int64_t index) const {
  std::vector<std::string> out;
  for (size_t f = 1; pairs_ != nullptr && f < pairs_->folders(); ++f) out.push_back(pairs_->name(f, index));
  return out;
}

Json PackInput::description() const {
  const TableFacts& facts = table_->facts();
  Json files = Json::array();
  for (const TableFile& file : facts.files) files.push_back({file.path, file.bytes, file.modified_ns});
  const Sum128 names = pairs_ != nullptr ? pairs_->fingerprint() : table_->fingerprint();
  return {{"kind", facts.kind},        {"place", dataset_.title()}, {"options", facts.options},
          {"samples", table_->size()}, {"names", names.hex()},      {"files", files}};
}

std::string PackInput::difference(const Json& then, const Json& now) {
  for (const char* key : {"kind", "place", "options"}) {
    const std::string before = then.value(key, "");
    const std::string after = now.value(key, "");
    if (before != after) return std::string("its ") + key + " was '" + before + "' and is '" + after + "'";
  }
  const Json& before = then.at("files");
  const Json& after = now.at("files");
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    if (before[i] != after[i]) return "'" + after[i].at(0).get<std::string>() + "' in it was changed";
  }
  if (before.size() != after.size()) return "it has other files";
  if (then.at("samples") != now.at("samples")) {
    return "it had " + json_text(then.at("samples")) + " samples and has " + json_text(now.at("samples"));
  }
  return then.at("names") != now.at("names") ? "its samples have other names or labels" : "";
}

std::string PackInput::changed() const {
  if (pack_ != nullptr) return {};  // its records have checksums
  FileSystem& files = posix_file_system();
  for (const TableFile& file : table_->facts().files) {
    const std::string path = under_root(root_, file.path);
    const FileFacts now = files.examine(path);
    const bool folder = table_->facts().kind == "folder";
    if (now.modified_ns != file.modified_ns || (!folder && now.bytes != file.bytes)) return "'" + path + "'";
  }
  return {};
}

std::vector<std::string> PackInput::roots() const {
  if (!dataset_.is_paired()) return {root_};
  std::vector<std::string> out = {dataset_.images};
  for (const std::string* folder : {&dataset_.masks, &dataset_.targets}) {
    if (!folder->empty()) out.push_back(*folder);
  }
  return out;
}

}  // namespace penstock
