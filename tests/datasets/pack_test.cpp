// Packs: what is in one comes out, one read a sample, and nothing damaged is believed or taken for a bad picture.
#include "runtime/datasets/pack_format.h"

#include <doctest/doctest.h>

#include <cstring>

#include "runtime/base/crc32c.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/cached_source.h"
#include "runtime/datasets/json_numbers.h"
#include "runtime/datasets/pack_source.h"
#include "tests/fuzz/memory_disk.h"
#include "tests/support/error_of.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_pack.h"

using namespace penstock;

namespace {

constexpr const char* kShard = "/p/shard-00000.pack";

std::span<const std::byte> view(const std::vector<uint8_t>& bytes) {
  return bytes_of(bytes.data(), bytes.size());
}

SampleTable table_of(const std::vector<uint8_t>& index) {
  auto words = std::make_shared<std::vector<uint64_t>>((index.size() + 7) / 8);
  if (!index.empty()) std::memcpy(words->data(), index.data(), index.size());
  return SampleTable::parse(std::as_bytes(std::span(*words)).first(index.size()), words);
}

// The whole way that opening goes.
SampleTable opened(const SmallPack& pack) {
  MemoryDisk disk;
  disk.add(kShard, view(pack.shard));
  SampleTable table = table_of(pack.index);
  check_pack(table, "/p", disk);
  return table;
}

std::string refusal(const SmallPack& pack) {
  try {
    (void)opened(pack);
    return "accepted";
  } catch (const Error& error) {
    return error.message();
  }
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Makes the index's checksums right again.
void seal(std::vector<uint8_t>& index) {
  const Sum128 sum = hash128(view(index).subspan(96));
  std::memcpy(index.data() + 64, &sum.low, 8);
  std::memcpy(index.data() + 72, &sum.high, 8);
  std::memset(index.data() + 12, 0, 4);
  const uint32_t crc = crc32c(index.data(), 96);
  std::memcpy(index.data() + 12, &crc, 4);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("what is in a pack comes out, in one read a sample") {
  const SmallPack pack = small_pack();
  MemoryDisk memory;
  memory.add(kShard, view(pack.shard));
  FaultyFileSystem disk(memory);
  const PackSource source(opened(pack), "/p", DecodeLimits{}, disk);
  REQUIRE(source.size() == 3);
  REQUIRE(source.fields().size() == 4);
  CHECK(source.fields()[2].name == "caption");
  CHECK(source.fields()[3].name == "box");
  SourceSample sample;
  for (uint64_t i = 0; i < 3; ++i) {
    DrawKey key;
    key.index = i;
    const int64_t before = disk.reads();
    REQUIRE(source.load(key, sample).ok());
    CHECK(disk.reads() == before + 1);
    const char letter = static_cast<char>('a' + i);
    CHECK(source.key(static_cast<int64_t>(i)) == "cat/" + std::to_string(i));
    CHECK(sample.label == static_cast<int64_t>(i));
    CHECK(text_of(sample.image) == std::string(40 + i, letter));
    CHECK(text_of(sample.fields[0]) == std::string(5, letter));
    int32_t box[2];
    REQUIRE(sample.fields[1].size() == sizeof box);
    std::memcpy(box, sample.fields[1].data(), sizeof box);
    CHECK(box[1] == static_cast<int32_t>(i));
    CHECK(text_of(sample.restart_points) == std::string(i, letter));
    std::vector<std::byte> image;
    CHECK(source.read(static_cast<int64_t>(i), image).ok());
    CHECK(text_of(image) == std::string(40 + i, letter));
    CHECK(record_of(source.table(), static_cast<int64_t>(i)).bytes == 45 + 2 * i);
  }
  CHECK_THROWS_AS((void)source.load({0, 0, 3, 0}, sample), Error);
}

TEST_CASE("notes are read as they were written") {
  const SampleTable table = opened(small_pack());
  CHECK(!notes_of(table, 0).rewritten);
  CHECK(notes_of(table, 1).rewritten);
  CHECK(notes_of(table, 2).bad == "cut off");
  CHECK(notes_of(table, 2).partners == std::vector<std::string>{"a.png"});
  CHECK(as_text(PackNotes{}).empty());
}

TEST_CASE("samples over the limits are bad, and nothing of them is read") {
  const SmallPack pack = small_pack();
  MemoryDisk memory;
  memory.add(kShard, view(pack.shard));
  FaultyFileSystem disk(memory);
  DecodeLimits limits;
  limits.max_encoded_bytes = 41;
  const PackSource source(opened(pack), "/p", limits, disk);
  SourceSample sample;
  CHECK(source.load({0, 0, 1, 0}, sample).ok());
  CHECK(has(source.load({0, 0, 2, 0}, sample).reason, "42 bytes, more than limits.max_encoded_bytes (41)"));
  CHECK(disk.reads() == 1);
  limits.max_field_bytes = 4;
  CHECK(has(PackSource(opened(pack), "/p", limits, disk).load({0, 0, 1, 0}, sample).reason,
            "field 'caption' has 5 bytes, more than limits.max_field_bytes (4)"));
  CHECK(disk.reads() == 1);
}

TEST_CASE("kept in memory, restart points stay the sample's own") {
  const SmallPack pack = small_pack();
  MemoryDisk disk;
  disk.add(kShard, view(pack.shard));
  const CachedSource source(std::make_unique<PackSource>(opened(pack), "/p", DecodeLimits{}, disk), disk, 1 << 20);
  SourceSample sample;
  for (int round = 0; round < 2; ++round) {
    for (const uint64_t i : {2, 1, 0, 2}) {
      REQUIRE(source.load({0, 0, i, 0}, sample).ok());
      CHECK(text_of(sample.restart_points) == std::string(i, static_cast<char>('a' + i)));
      CHECK(text_of(sample.fields[0]) == std::string(5, static_cast<char>('a' + i)));
    }
  }
  CHECK(source.kept() == 3);
}

TEST_CASE("a damaged record is trouble of the disk, by name, and not a bad picture") {
  for (size_t at = sizeof(PackHeader); at < sizeof(PackHeader) + 45; ++at) {
    SmallPack pack = small_pack();
    pack.shard[at] ^= 1;
    MemoryDisk disk;
    disk.add(kShard, view(pack.shard));
    const PackSource source(opened(pack), "/p", DecodeLimits{}, disk);
    SourceSample sample;
    try {
      (void)source.load({0, 0, 0, 0}, sample);
      FAIL("accepted");
    } catch (const FileError& error) {
      CHECK(error.code() == EIO);
      CHECK(has(error.message(), "'/p/shard-00000.pack' is damaged: the record of sample 'cat/0' at byte 64"));
    }
    std::vector<std::byte> image;
    CHECK_THROWS_AS((void)source.read(0, image), FileError);
    CHECK(source.load({0, 0, 1, 0}, sample).ok());
  }
}

TEST_CASE("every damaged byte of index, table and trailer is noticed, and every cut") {
  const SmallPack good = small_pack();
  REQUIRE(refusal(good) == "accepted");
  for (size_t at = 0; at < good.index.size(); ++at) {
    SmallPack pack = good;
    pack.index[at] ^= 0x41;
    CHECK(refusal(pack) != "accepted");
  }
  for (size_t bytes = 0; bytes < good.index.size(); bytes += 7) {
    SmallPack pack = good;
    pack.index.resize(bytes);
    CHECK(refusal(pack) != "accepted");
  }
  for (size_t bytes = 0; bytes < good.shard.size(); bytes += 7) {
    SmallPack pack = good;
    pack.shard.resize(bytes);
    CHECK(has(refusal(pack), "bytes, and had "));
  }
  const auto own_table = [](const std::vector<uint8_t>& shard) {
    const MemoryFile file(kShard, view(shard));
    (void)read_pack_header(file);
    return read_shard_table(file, read_trailer(file), file.size()).size();
  };
  REQUIRE(own_table(good.shard) == 3);
  const size_t records_end = good.shard.size() - sizeof(PackTrailer) - good.table_bytes;
  for (size_t at = 0; at < good.shard.size(); ++at) {
    if (at >= sizeof(PackHeader) && at < records_end) continue;
    std::vector<uint8_t> shard = good.shard;
    shard[at] ^= 0x41;
    CHECK_THROWS_AS((void)own_table(shard), Error);
  }
}

TEST_CASE("with checksums made right, records that do not follow each other are refused, and nothing is read outside") {
  const SmallPack good = small_pack();
  int accepted = 0;
  for (size_t at = 96; at < good.index.size(); ++at) {
    for (const uint8_t change : {0x01, 0x41, 0x80}) {
      SmallPack pack = good;
      pack.index[at] ^= change;
      seal(pack.index);
      MemoryDisk disk;
      disk.add(kShard, view(pack.shard));
      try {
        const PackSource source(opened(pack), "/p", DecodeLimits{}, disk);
        ++accepted;
        read_all(source);  // a sanitizer's task
      } catch (const Error&) {
      }
    }
  }
  CHECK(accepted > 0);  // a checksum of a record, a note, a picture's width
  // Row 1 begins a byte later, row 1 is a byte shorter.
  for (const size_t word : {size_t{0}, size_t{8}}) {
    SmallPack pack = good;
    pack.index[96 + 48 + word] ^= 1;
    seal(pack.index);
    CHECK(has(refusal(pack), "sample 1 in it is no record of its shard"));
  }
}

TEST_CASE("a pack is opened through the file system that is given, and through no other") {
  const SmallPack pack = small_pack();
  MemoryDisk disk;
  CHECK(!is_pack("/p", disk));
  const Error missing = error_of([&] { (void)open_pack_table("/p", disk); });
  CHECK(missing.kind() == ErrorKind::dataset);
  CHECK(has(missing.remedy(), "dataset.pack names a folder"));
  disk.add("/p/pack.state", view(pack.index));
  CHECK(is_pack("/p", disk));
  CHECK_THROWS_WITH_AS((void)open_pack_table("/p", disk), doctest::Contains("it is not finished"), Error);
  disk.add("/p/pack.index", view(pack.index));
  disk.add(kShard, view(pack.shard));
  CHECK(open_pack_table("/p", disk).size() == 3);
  CHECK(open_pack("/p", DecodeLimits{}, disk)->size() == 3);
}

TEST_CASE("what would take more memory than a pack may is refused before any is taken") {
  const auto table_of_one = [](uint64_t image, uint64_t entries) {
    TableBuilder out("tar");
    const uint64_t bytes = sizeof(PackHeader) + pack_padded(image + entries);
    out.add_file({shard_name(0), bytes, 0, Codec::none, bytes});
    out.add_field({kRestartPoints, FieldKind::bytes, DType::uint8, {}});
    out.add("a", 0, 0, sizeof(PackHeader), image);
    out.place(0, 0, sizeof(PackHeader) + image, entries);
    return out.finish();
  };
  const auto check = [&](uint64_t image, uint64_t entries) -> std::string {
    try {
      check_records(table_of_one(image, entries), 0, 1, 0, sizeof(PackHeader) + pack_padded(image + entries));
      return "accepted";
    } catch (const Error& error) {
      return error.message();
    }
  };
  CHECK(check(kMaxRecordBytes - 10, 10) == "accepted");
  CHECK(check(kMaxRecordBytes - 10, 11) == "sample 0 in it has 4294967297 bytes, and a record has up to 4294967296");

  MemoryDisk memory;
  FaultyFileSystem disk(memory);
  const PackSource source(table_of_one(10, uint64_t{1} << 30), "/p", DecodeLimits{}, disk);
  SourceSample sample;
  CHECK(has(source.load({0, 0, 0, 0}, sample).reason,
            "'.restart_points' has 1073741824 bytes, more than limits.max_encoded_bytes"));
  CHECK(sample.storage.empty());
  CHECK(disk.reads() == 0);

  TableBuilder behind("tar");
  behind.add_field({kRestartPoints, FieldKind::bytes, DType::uint8, {}});
  behind.add_field({"late", FieldKind::bytes, DType::uint8, {}});
  behind.add("a", 0, kOwnFile, 0, 0);
  behind.value(0, {});
  behind.value(1, {});
  CHECK_THROWS_WITH_AS((void)behind.finish(), doctest::Contains("it has the field 'late' behind a hidden one"), Error);

  const SmallPack pack = small_pack();
  const MemoryFile file(kShard, view(pack.shard));
  CHECK(read_shard_table(file, read_trailer(file), pack.table_bytes).size() == 3);
  CHECK_THROWS_AS((void)read_shard_table(file, read_trailer(file), pack.table_bytes - 1), Error);
  CHECK(pack.table_bytes <= pack.index.size());

  CHECK_THROWS_WITH_AS((void)pack_facts(std::string(20, '[')),
                       doctest::Contains("its description: it is nested too deeply"), Error);
}

TEST_CASE("a shard of another pack, another version, or none at all") {
  const SmallPack good = small_pack();
  SmallPack pack = good;
  auto* const end = pack.shard.data() + pack.shard.size() - sizeof(PackTrailer);
  PackTrailer trailer;
  std::memcpy(&trailer, end, sizeof trailer);
  PackTrailer other = trailer;
  other.table_sum[0] ^= 1;
  other = sealed(other);
  std::memcpy(end, &other, sizeof other);
  CHECK(has(refusal(pack), "is a shard of another pack than its index"));
  other = trailer;
  other.version = 2;
  other = sealed(other);
  std::memcpy(end, &other, sizeof other);
  CHECK(has(refusal(pack), "is of version 2, and this penstock reads version 1"));
  other = trailer;
  other.table_offset += 8;
  other = sealed(other);
  std::memcpy(end, &other, sizeof other);
  CHECK(has(refusal(pack), "has a trailer that does not fit its size"));
  MemoryDisk empty;
  CHECK_THROWS_AS(check_pack(table_of(good.index), "/p", empty), FileError);
}

TEST_CASE("a description says which version it is, and is of a pack") {
  const PackFacts facts{{5, 6}, {{3, 64, {7, 8}}}};
  const PackFacts again = pack_facts(pack_options(facts));
  CHECK(again.id == facts.id);
  REQUIRE(again.shards.size() == 1);
  CHECK(again.shards[0].table_sum == facts.shards[0].table_sum);
  for (const char* text : {"", "{}", "[]", "{\"pack\":2}", "{\"pack\":1,\"id\":\"x\",\"shards\":[]}",
                           "{\"pack\":1,\"id\":5,\"shards\":[]}", "{\"pack\":1e84}", "{\"pack\":-1}", "{\"pack\":true}",
                           "[[[[[[[[[[[[]]]]]]]]]]]]"}) {
    CHECK_THROWS_AS((void)pack_facts(text), Error);
  }
  CHECK(shard_name(7) == "shard-00007.pack");
  CHECK(shard_name(123456) == "shard-123456.pack");
}

TEST_CASE("whole numbers of JSON are taken as they are, or not") {
  int width = 5;
  CHECK(whole_number(parse_json("-7"), width));
  CHECK(width == -7);
  uint64_t bytes = 5;
  CHECK(whole_number(parse_json("18446744073709551615"), bytes));
  CHECK(bytes == ~uint64_t{0});
  int64_t time = 5;
  for (const char* text :
       {"1e84", "1.0", "true", "null", "\"1\"", "[1]", "18446744073709551616", "9223372036854775808"}) {
    CHECK_FALSE(whole_number(parse_json(text), time));
    CHECK_FALSE(whole_number(parse_json(text), width));
  }
  CHECK_FALSE(whole_number(parse_json("-1"), bytes));
  CHECK_FALSE(whole_number(parse_json("2147483648"), width));
  CHECK(time == 5);
  CHECK(width == -7);
}
