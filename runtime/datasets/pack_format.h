// A pack: a data set in large files that are read from front to back once and from anywhere ever after.
//
//   SampleTable table = SampleTable::parse(bytes_of_pack_index, owner);
//   check_pack(table, "/data/train.pack", files);       // Error(dataset) unless index and shards belong together
//   PackRecord record = record_of(table, 17);           // where sample 17's bytes are, in shard table.row(17).file
//   check_of(bytes) == table.row(17).check;
//
// PACK.md beside this file has the wire format with its grammar and an example. In short: pack.index is a table
//   (sample_table.h) whose files are the shards; a shard is a header, records, the table of its own samples, a trailer.
//   A record is what the sample consists of, one after the other: picture, fields, restart points.
// Trust: check_pack() believes nothing. Records lie one after the other between header and table, without a gap; sizes
//   and trailers of the shards are those that the index knows. What it cannot know without reading everything, whether
//   records are as they were written, the checksum in each row tells when one is read.
// Thread-safety: functions without state. Failure: Error(dataset) and FileError that name the pack or the shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/datasets/sample_table.h"

namespace penstock {

inline constexpr const char* kPackIndex = "pack.index";
inline constexpr const char* kPackState = "pack.state";  // of a pack that is not finished
inline constexpr uint32_t kPackVersion = 1;
inline constexpr uint64_t kPackAlignment = 8;  // of records and tables in a shard
inline constexpr uint64_t kMaxRecordBytes = uint64_t{4} << 30;

std::string shard_name(size_t number);  // "shard-00017.pack"

// Both are stored as they stand here.
struct PackHeader {
  char magic[8] = {'p', 'e', 'n', 's', 'p', 'a', 'c', 'k'};
  uint32_t version = kPackVersion;
  uint32_t crc = 0;  // CRC-32C of the header, this word being 0
  uint32_t number = 0;
  uint32_t reserved = 0;
  uint64_t first_sample = 0;
  uint64_t id[2] = {};  // of the pack
  uint64_t zero[2] = {};
};
static_assert(sizeof(PackHeader) == 64);

struct PackTrailer {
  char magic[8] = {'p', 'a', 'c', 'k', 't', 'a', 'i', 'l'};
  uint32_t version = kPackVersion;
  uint32_t crc = 0;  // CRC-32C of the trailer, this word being 0
  uint64_t table_offset = 0;
  uint64_t table_bytes = 0;
  uint64_t samples = 0;
  uint64_t shard_bytes = 0;
  uint64_t table_sum[2] = {};  // XXH3-128 of the table: of each record's checksum, then, and so of the whole shard
};
static_assert(sizeof(PackTrailer) == 64);

PackHeader sealed(PackHeader header);
PackTrailer sealed(PackTrailer trailer);

inline uint64_t pack_padded(uint64_t bytes) {
  return (bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
}

// What the index says of its pack besides the samples: `options` of its table.
struct PackShard {
  uint64_t samples = 0;
  uint64_t table_offset = 0;
  Sum128 table_sum;
};
struct PackFacts {
  Sum128 id;
  std::vector<PackShard> shards;
};
std::string pack_options(const PackFacts& facts);
PackFacts pack_facts(const std::string& options);  // Error(dataset): it is no table of a pack

struct PackRecord {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
// The table must have passed check_records().
PackRecord record_of(const SampleTable& table, int64_t index) noexcept;

// Samples [first, end) of `table` are records of its file number `file`, from a shard's header to `table_offset`, and
// none is larger than kMaxRecordBytes.
void check_records(const SampleTable& table, int64_t first, int64_t end, uint32_t file, uint64_t table_offset);

// The trailer and header of a shard. Error(dataset) naming it.
PackTrailer read_trailer(const FileReader& shard);
PackHeader read_pack_header(const FileReader& shard);
// The table of its own samples, checked as everything else. Before memory is taken it is refused if it is larger than
// `most_bytes`: those of the pack's index, which says all that the shards' tables say, and more.
SampleTable read_shard_table(const FileReader& shard, const PackTrailer& trailer, uint64_t most_bytes);

// The index of the pack in `folder`: against itself, and against size and trailer of every shard.
// `local`: of every shard that is there.
void check_pack(const SampleTable& table, const std::string& folder, FileSystem& files, bool local = false);

// pack.index, mapped and checked. Error(dataset): no pack, one that is not finished, or a damaged one.
SampleTable open_pack_table(const std::string& folder, FileSystem& files, bool local = false);

// Whether there is a pack in `folder`, or one being made.
bool is_pack(const std::string& folder, FileSystem& files = posix_file_system());

// What packing noted of a sample: lines of a word and what belongs to it.
struct PackNotes {
  bool rewritten = false;             // the picture's file was written anew, with the same pixels
  std::string bad;                    // why it cannot be used
  std::vector<std::string> partners;  // names of the files of further pictures
};
std::string as_text(const PackNotes& notes);
PackNotes notes_of(const SampleTable& table, int64_t index);

}  // namespace penstock
