// The table of a data set's samples: where each one lies. What every container format (tar, MDS, TFRecord, CSV, CIFAR,
// MNIST) is turned into when it opens, and, written to a file, the index that spares the next opening (index_file.h).
//
//   TableBuilder builder("tar", "/data/shards");
//   const uint32_t shard = builder.add_file({.path = "000.tar", .bytes = 10240, .modified_ns = ...});
//   const size_t depth = builder.add_field({"depth", FieldKind::tensor, DType::float32, {4, 4}});
//   builder.add("cat/1", /*label=*/3, shard, /*offset=*/512, /*bytes=*/9000);
//   builder.place(depth, shard, 10240, 64);          // of the sample just added
//   SampleTable table = builder.finish();            // SampleTable::parse reads the same bytes back
//
// One form: the table in memory is byte for byte the index file, so both are checked by the same code, and a mapped
//   file costs no copy. Little-endian: header (96 bytes), rows, places (field by field), names, values, description
//   (JSON).
// Trust: parse() believes nothing. Every size is checked before it is used, every row lies inside its file, every name
//   inside the names; so reading through a table cannot leave what it describes. The checksum finds accidents.
// Fingerprint: XXH3-128 over keys, labels, fields, classes and pixel layout, in order; not over contents or places. Of
//   class folders (kind "folder"), that of ImageFolder, so that an index changes nothing.
// A pack (pack_format.h) is described by tables as well: its shards are their files, and rows know a record's checksum.
// Thread-safety: a table is immutable; copies share its bytes. A builder belongs to one thread.
// Failure: Error(dataset) that says what is wrong; who reads a file adds its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/fields.h"
#include "runtime/base/hash.h"

namespace penstock {

enum class Codec : uint8_t { none = 0, gzip = 1, zstd = 2 };

struct TableFile {
  std::string path;         // relative to the data set's root, or absolute
  uint64_t bytes = 0;       // on disk
  int64_t modified_ns = 0;  // with bytes: how an index notices that it is old
  Codec codec = Codec::none;
  uint64_t content_bytes = 0;  // what offsets are counted in: of the file, or of what it holds compressed

  friend bool operator==(const TableFile&, const TableFile&) = default;
};

// How pixels stand where they are not encoded.
enum class PixelLayout : uint8_t { encoded = 0, planar_rgb = 1, grey = 2 };

struct PixelFormat {
  PixelLayout layout = PixelLayout::encoded;
  int width = 0;
  int height = 0;

  uint64_t bytes() const noexcept {
    return static_cast<uint64_t>(width) * static_cast<uint64_t>(height) * (layout == PixelLayout::grey ? 1 : 3);
  }
  friend bool operator==(const PixelFormat&, const PixelFormat&) = default;
};

// Rows and places are stored as they stand here.
struct SampleRow {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t key_end = 0;  // in the names; the key starts where its predecessor ends
  int64_t label = 0;
  uint32_t file = 0;   // kOwnFile: the sample is a file of its own, whose path is the key
  uint32_t width = 0;  // what the image's header says; 0: not looked at
  uint32_t height = 0;
  // In a pack, the checksum of the sample's record. For a picture in TFRecord files, and for one with restart points,
  // that of the very bytes that were listed or that the points were made of. Else 0.
  uint32_t check = 0;
};
static_assert(sizeof(SampleRow) == 48);

// SampleRow::check of these bytes. The low 32 bits of XXH3-128: little more than half of CRC-32C's time here, and every
// read of a record pays it.
inline uint32_t check_of(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(hash128(bytes).low);
}

struct FieldPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t file = 0;  // kInTable: the value stands in the table itself
  uint32_t reserved = 0;
};
static_assert(sizeof(FieldPlace) == 24);

// A column of the table that no batch shows: where decoding may enter each picture (SourceSample::restart_points). Not
// part of the fingerprint, because it changes nothing but the time.
inline constexpr const char* kRestartPoints = ".restart_points";
// Another one, of packs: what packing found out about a sample, as lines (pack_format.h).
inline constexpr const char* kNotes = ".notes";

// A column that no batch shows. Such columns come after all others.
inline bool is_hidden(const FieldSpec& field) {
  return field.name == kRestartPoints || field.name == kNotes;
}

inline constexpr uint32_t kOwnFile = 0xFFFFFFFF;
inline constexpr uint32_t kInTable = 0xFFFFFFFF;
inline constexpr uint64_t kMaxFieldBytes = uint64_t{1} << 30;  // of one field of one sample

// What a table says besides its rows.
struct TableFacts {
  std::string kind;     // "tar", "csv", ...: the key of the job file
  std::string options;  // what of the job file decided its content, as text to compare
  std::vector<TableFile> files;
  std::vector<FieldSpec> fields;  // after image and label
  std::vector<std::string> classes;
  PixelFormat pixels;
  bool labelled = true;
  // Not 0: records of more bytes were passed over, and their rows are bad samples, which they need not be where the
  // limit is another one.
  uint64_t passed_over_above = 0;
};

class SampleTable {
 public:
  // `bytes` must be aligned to 8 and stay as they are; `owner` keeps them.
  static SampleTable parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);

  int64_t size() const noexcept { return static_cast<int64_t>(rows_.size()); }
  const TableFacts& facts() const noexcept { return *facts_; }
  const SampleRow& row(int64_t index) const noexcept { return rows_[static_cast<size_t>(index)]; }
  std::string_view key(int64_t index) const noexcept;
  const FieldPlace& place(size_t field, int64_t index) const noexcept {
    return places_[field * rows_.size() + static_cast<size_t>(index)];
  }
  std::span<const std::byte> value(const FieldPlace& place) const noexcept {
    return values_.subspan(static_cast<size_t>(place.offset), static_cast<size_t>(place.bytes));
  }
  std::span<const std::byte> values() const noexcept { return values_; }
  const Sum128& fingerprint() const noexcept { return fingerprint_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  std::span<const SampleRow> rows_;
  std::span<const FieldPlace> places_;
  std::string_view names_;
  std::span<const std::byte> values_;
  std::shared_ptr<const TableFacts> facts_;
  Sum128 fingerprint_;
};

class TableBuilder {
 public:
  explicit TableBuilder(std::string kind) { facts_.kind = std::move(kind); }
  explicit TableBuilder(const SampleTable& table);  // to change it

  TableFacts& facts() noexcept { return facts_; }
  uint32_t add_file(TableFile file);
  size_t add_field(FieldSpec field);  // before the first sample
  void add(std::string_view key, int64_t label, uint32_t file, uint64_t offset, uint64_t bytes);
  void place(size_t field, uint32_t file, uint64_t offset, uint64_t bytes);
  void value(size_t field, std::span<const std::byte> bytes);
  void header(int64_t index, uint32_t width, uint32_t height);
  // Once all samples are there: a value for each, as a column named kRestartPoints.
  void restart_points(std::span<const std::string> values);
  int64_t size() const noexcept { return static_cast<int64_t>(rows_.size()); }
  SampleRow& row(int64_t index) noexcept { return rows_[static_cast<size_t>(index)]; }
  std::string_view key(int64_t index) const noexcept;

  // The first two samples with equal keys, smaller index first; {-1, -1}: there are none.
  std::pair<int64_t, int64_t> equal_keys() const;

  // Leaves the builder empty. Error(dataset) without samples.
  SampleTable finish();

 private:
  TableFacts facts_;
  std::vector<SampleRow> rows_;
  std::vector<std::vector<FieldPlace>> places_;
  std::string names_;
  std::vector<std::byte> values_;
};

}  // namespace penstock
