#include "runtime/datasets/pack_format.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/bounded_json.h"
#include "runtime/datasets/files_here.h"
#include "runtime/datasets/index_file.h"
#include "runtime/datasets/json_numbers.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxShardBytes = uint64_t{1} << 60;  // so that no sum of sizes runs over

constexpr const char* kAgain = "copy the pack again, or make it again with `penstock pack`";

[[noreturn]] void refuse_pack(const std::string& why) {
  throw Error(ErrorKind::dataset, why, kAgain);
}

template <class Part>
uint32_t crc_of(Part part) {
  part.crc = 0;
  return crc32c(&part, sizeof part);
}

template <class Part>
Part sealed_part(Part part) {
  part.crc = crc_of(part);
  return part;
}

template <class Part>
Part read_part(const FileReader& shard, uint64_t offset, const char* what) {
  Part part;
  const Part fresh;
  shard.read_at(offset, std::as_writable_bytes(std::span(&part, 1)));
  const std::string where = "'" + shard.path() + "' ";
  if (std::memcmp(part.magic, fresh.magic, sizeof part.magic) != 0) {
    refuse_pack(where + "has no " + what + " of a shard: it was cut off, or is no file of a pack");
  }
  if (crc_of(part) != part.crc) refuse_pack(where + "is damaged: the checksum of its " + what + " is wrong");
  if (part.version != kPackVersion) {
    throw Error(ErrorKind::dataset,
                where + "is of version " + std::to_string(part.version) + ", and this penstock reads version " +
                    std::to_string(kPackVersion),
                "make the pack again with `penstock pack`, or read it with the penstock that made it");
  }
  return part;
}

void check_length(const FileReader& shard) {
  if (shard.size() >= sizeof(PackHeader) + sizeof(PackTrailer)) return;
  refuse_pack("'" + shard.path() + "' has " + std::to_string(shard.size()) +
              " bytes, and a shard has more: it was cut off");
}

bool is_there(const std::string& path, FileSystem& files) {
  try {
    (void)files.examine(path);
    return true;
  } catch (const FileError&) {
    return false;
  }
}

// Otherwise the value stands in the table itself.
bool in_record(const FieldPlace& place) {
  return place.file != kInTable;
}

}  // namespace

std::string shard_name(size_t number) {
  char text[40];
  std::snprintf(text, sizeof text, "shard-%05zu.pack", number);
  return text;
}

PackHeader sealed(PackHeader header) {
  return sealed_part(header);
}
PackTrailer sealed(PackTrailer trailer) {
  return sealed_part(trailer);
}

std::string pack_options(const PackFacts& facts) {
  Json shards = Json::array();
  for (const PackShard& shard : facts.shards) {
    shards.push_back({shard.samples, shard.table_offset, shard.table_sum.hex()});
  }
  return json_text(Json({{"pack", kPackVersion}, {"id", facts.id.hex()}, {"shards", shards}}));
}

PackFacts pack_facts(const std::string& options) {
  PackFacts facts;
  try {
    const Json json =
        parse_bounded(options, [](const char* why) { refuse_pack(std::string("its description: ") + why); });
    uint64_t version = 0;
    if (!whole_number(json.at("pack"), version) || version != kPackVersion) {
      refuse_pack("it is of version " + std::to_string(version) + ", and this penstock reads version " +
                  std::to_string(kPackVersion));
    }
    facts.id = Sum128::from_hex(json.at("id").get<std::string>());
    for (const Json& shard : json.at("shards")) {
      PackShard one;
      if (!whole_number(shard.at(0), one.samples) || !whole_number(shard.at(1), one.table_offset)) {
        refuse_pack("a shard of its description has no whole numbers");
      }
      one.table_sum = Sum128::from_hex(shard.at(2).get<std::string>());
      facts.shards.push_back(one);
    }
  } catch (const Json::exception&) {
    refuse_pack("it is a table, but not that of a pack");
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::dataset) throw;
    refuse_pack("its description has a checksum that is none");
  }
  return facts;
}

PackRecord record_of(const SampleTable& table, int64_t index) noexcept {
  const SampleRow& row = table.row(index);
  PackRecord record{row.offset, row.bytes};
  for (size_t f = 0; f < table.facts().fields.size(); ++f) {
    const FieldPlace& place = table.place(f, index);
    if (in_record(place)) record.bytes += place.bytes;
  }
  return record;
}

void check_records(const SampleTable& table, int64_t first, int64_t end, uint32_t file, uint64_t table_offset) {
  const size_t fields = table.facts().fields.size();
  uint64_t at = sizeof(PackHeader);
  if (table_offset < at) refuse_pack("shard " + std::to_string(file) + " is too short for its header");
  for (int64_t i = first; i < end; ++i) {
    const SampleRow& row = table.row(i);
    // parse() has seen to it that places lie in their files, so no sum can run over.
    bool good = row.file == file && row.offset == at && row.bytes <= table_offset - at;
    at += good ? row.bytes : 0;
    for (size_t f = 0; f < fields && good; ++f) {
      const FieldPlace& place = table.place(f, i);
      if (!in_record(place)) continue;
      good = place.file == file && place.offset == at && place.bytes <= table_offset - at;
      at += good ? place.bytes : 0;
    }
    if (good && at - row.offset > kMaxRecordBytes) {
      refuse_pack("sample " + std::to_string(i) + " in it has " + std::to_string(at - row.offset) +
                  " bytes, and a record has up to " + std::to_string(kMaxRecordBytes));
    }
    at = pack_padded(at);
    if (!good || at > table_offset) refuse_pack("sample " + std::to_string(i) + " in it is no record of its shard");
  }
  if (at != table_offset) refuse_pack("its records do not fill shard " + std::to_string(file));
}

PackTrailer read_trailer(const FileReader& shard) {
  check_length(shard);
  const auto trailer = read_part<PackTrailer>(shard, shard.size() - sizeof(PackTrailer), "trailer");
  const uint64_t body = shard.size() - sizeof(PackTrailer);
  const bool good = trailer.shard_bytes == shard.size() && trailer.table_offset >= sizeof(PackHeader) &&
                    trailer.table_offset <= body && trailer.table_offset % kPackAlignment == 0 &&
                    trailer.table_bytes == body - trailer.table_offset;
  if (!good) refuse_pack("'" + shard.path() + "' has a trailer that does not fit its size: it is damaged");
  return trailer;
}

PackHeader read_pack_header(const FileReader& shard) {
  check_length(shard);
  return read_part<PackHeader>(shard, 0, "header");
}

SampleTable read_shard_table(const FileReader& shard, const PackTrailer& trailer, uint64_t most_bytes) {
  if (trailer.table_bytes > most_bytes) {
    refuse_pack("'" + shard.path() + "' has a table of " + std::to_string(trailer.table_bytes) +
                " bytes, and no more than " + std::to_string(most_bytes) + " can be right");
  }
  auto words = std::make_shared<std::vector<uint64_t>>((trailer.table_bytes + 7) / 8);
  const auto bytes = std::as_writable_bytes(std::span(*words)).first(static_cast<size_t>(trailer.table_bytes));
  shard.read_at(trailer.table_offset, bytes);
  try {
    if (hash128(bytes) != Sum128{trailer.table_sum[0], trailer.table_sum[1]}) {
      refuse_pack("the checksum of its table is wrong: it is damaged");
    }
    SampleTable table = SampleTable::parse(bytes, words);
    if (static_cast<uint64_t>(table.size()) != trailer.samples || table.facts().files.size() != 1) {
      refuse_pack("its table is not that of a shard");
    }
    check_records(table, 0, table.size(), 0, trailer.table_offset);
    return table;
  } catch (const Error& error) {
    throw Error(error.kind(), "'" + shard.path() + "': " + error.message(), kAgain);
  }
}

void check_pack(const SampleTable& table, const std::string& folder, FileSystem& files, bool local) {
  const std::vector<TableFile>& shards = table.facts().files;
  const PackFacts facts = pack_facts(table.facts().options);
  if (facts.shards.size() != shards.size()) refuse_pack("its index speaks of different numbers of shards");
  uint64_t first = 0;
  const auto samples = static_cast<uint64_t>(table.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const PackShard& shard = facts.shards[i];
    if (shards[i].path != shard_name(i) || shards[i].codec != Codec::none || shard.samples > samples - first ||
        shard.table_offset > shards[i].bytes || shards[i].bytes > kMaxShardBytes) {
      refuse_pack("shard " + std::to_string(i) + " is described in its index as none can be");
    }
    check_records(table, static_cast<int64_t>(first), static_cast<int64_t>(first + shard.samples),
                  static_cast<uint32_t>(i), shard.table_offset);
    first += shard.samples;
  }
  if (first != samples) refuse_pack("its index has samples of no shard");
  for (size_t i = 0; i < shards.size(); ++i) {
    if (local && !is_here(folder + "/" + shards[i].path, files)) continue;
    const std::unique_ptr<FileReader> file = files.open_file(folder + "/" + shards[i].path);
    if (file->size() != shards[i].bytes) {
      refuse_pack("'" + file->path() + "' has " + std::to_string(file->size()) + " bytes, and had " +
                  std::to_string(shards[i].bytes) + " when the pack was made");
    }
    const PackTrailer trailer = read_trailer(*file);
    if (Sum128{trailer.table_sum[0], trailer.table_sum[1]} != facts.shards[i].table_sum ||
        trailer.table_offset != facts.shards[i].table_offset || trailer.samples != facts.shards[i].samples) {
      refuse_pack("'" + file->path() + "' is a shard of another pack than its index");
    }
  }
}

SampleTable open_pack_table(const std::string& folder, FileSystem& files, bool local) {
  try {
    if (!is_there(folder + "/" + kPackIndex, files) && is_there(folder + "/" + kPackState, files)) {
      throw Error(ErrorKind::dataset, "it is not finished",
                  "run the same `penstock pack` again: it goes on from there");
    }
    SampleTable table =
        map_table(folder + "/" + kPackIndex, "dataset.pack names a folder that `penstock pack` made", files);
    check_pack(table, folder, files, local);
    return table;
  } catch (const FileError& error) {
    // At the start a file that is not there is a mistake about the data.
    throw Error(ErrorKind::dataset, error.message(), error.remedy());
  } catch (const Error& error) {
    // The table's own advice is that of an index.
    const bool damaged = error.remedy().find("penstock index") != std::string::npos;
    throw Error(error.kind(), "the pack '" + folder + "': " + error.message(), damaged ? kAgain : error.remedy());
  }
}

bool is_pack(const std::string& folder, FileSystem& files) {
  return is_there(folder + "/" + kPackIndex, files) || is_there(folder + "/" + kPackState, files);
}

std::string as_text(const PackNotes& notes) {
  std::string out = notes.rewritten ? "rewritten\n" : "";
  if (!notes.bad.empty()) {
    out += "bad ";
    for (const char c : notes.bad) out += c == '\n' ? ' ' : c;
    out += '\n';
  }
  // Names may hold anything but NUL, a line's end too.
  for (const std::string& partner : notes.partners) (out += "partner ") += partner + '\0';
  return out;
}

PackNotes notes_of(const SampleTable& table, int64_t index) {
  PackNotes notes;
  const std::vector<FieldSpec>& fields = table.facts().fields;
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].name != kNotes || table.place(f, index).file != kInTable) continue;
    const std::span<const std::byte> value = table.value(table.place(f, index));
    std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
    while (!text.empty()) {
      const bool partner = text.starts_with("partner ");
      const size_t end = std::min(text.find(partner ? '\0' : '\n'), text.size());
      const std::string_view line = text.substr(0, end);
      if (line == "rewritten") notes.rewritten = true;
      if (line.starts_with("bad ")) notes.bad = line.substr(4);
      if (partner) notes.partners.emplace_back(line.substr(8));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }
  return notes;
}

}  // namespace penstock
