// Parts of `penstock unpack` that need no program: which names are files below a folder, packs that somebody made to
// write elsewhere, and the line of progress.
#include "launch/unpack.h"
#include "launch/contained_folder.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "launch/progress_line.h"
#include "runtime/base/crc32c.h"
#include "runtime/datasets/pack_format.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

namespace {

struct PackedName {
  std::string key;
  std::vector<std::string> partners{};
  std::string picture = "P5\n1 1\n255\n\x07";
};

// A pack whose checksums are right, of samples with fields of 6 bytes; in it `from` is `to`.
void write_pack(const TemporaryFolder& folder, const std::string& kind, const std::vector<FieldSpec>& fields,
                const std::vector<PackedName>& samples, const std::string& from = "", const std::string& to = "") {
  const std::string value = "owned\n";
  const PackHeader header = sealed(PackHeader{});
  std::string shard(reinterpret_cast<const char*>(&header), sizeof header);
  for (const PackedName& sample : samples) {
    shard += sample.picture;
    for (size_t f = 0; f < fields.size(); ++f) shard += value;
    shard.resize(pack_padded(shard.size()));
  }
  const uint64_t end = shard.size();
  const auto table = [&](uint64_t bytes, const std::string& options) {
    TableBuilder out(kind);
    out.facts().labelled = false;
    out.facts().options = options;
    out.add_file({shard_name(0), bytes, 0, Codec::none, bytes});
    for (const FieldSpec& field : fields) out.add_field(field);
    const size_t notes = out.add_field({kNotes, FieldKind::bytes, DType::uint8, {}});
    uint64_t at = sizeof(PackHeader);
    for (const PackedName& sample : samples) {
      std::string record = sample.picture;
      out.add(sample.key, 0, 0, at, sample.picture.size());
      for (size_t f = 0; f < fields.size(); ++f) {
        out.place(f, 0, at + record.size(), value.size());
        record += value;
      }
      out.value(notes, as_bytes_of(as_text({false, "", sample.partners})));
      out.row(out.size() - 1).check = check_of(as_bytes_of(record));
      at += pack_padded(record.size());
    }
    const SampleTable made = out.finish();
    return std::string(reinterpret_cast<const char*>(made.bytes().data()), made.bytes().size());
  };
  const std::string own = table(end, "");
  const Sum128 sum = hash128(std::string_view(own));
  PackTrailer trailer;
  trailer.table_offset = end;
  trailer.table_bytes = own.size();
  trailer.samples = samples.size();
  trailer.shard_bytes = end + own.size() + sizeof trailer;
  trailer.table_sum[0] = sum.low;
  trailer.table_sum[1] = sum.high;
  trailer = sealed(trailer);
  std::string index = table(trailer.shard_bytes, pack_options({{}, {{samples.size(), end, sum}}}));
  if (!from.empty()) {
    REQUIRE(from.size() == to.size());
    const size_t found = index.find(from);
    REQUIRE(found != std::string::npos);
    index.replace(found, from.size(), to);
    const Sum128 content = hash128(std::string_view(index).substr(96));
    std::memcpy(index.data() + 64, &content.low, 8);
    std::memcpy(index.data() + 72, &content.high, 8);
    std::memset(index.data() + 12, 0, 4);
    const uint32_t crc = crc32c(index.data(), 96);
    std::memcpy(index.data() + 12, &crc, 4);
  }
  shard += own + std::string(reinterpret_cast<const char*>(&trailer), sizeof trailer);
  folder.write("pack/" + shard_name(0), shard);
  folder.write(std::string("pack/") + kPackIndex, index);
}

FieldSpec field(const std::string& name, FieldKind kind = FieldKind::bytes) {
  return {name, kind, DType::uint8, {}};
}

// Why the pack is not unpacked; nothing may have been written then. Empty: it is.
std::string refusal(const TemporaryFolder& folder) {
  try {
    const UnpackResult result = unpack({.pack = folder.path("pack"), .folder = folder.path("a/b")});
    CHECK(result.finished);
    return {};
  } catch (const Error& error) {
    CHECK(!std::filesystem::exists(folder.path("a")));
    return error.message();
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("no field's name leads out of the folder") {
  for (const char* name : {"..\\u0000", "\\u0000..", "..\\u001f", "..\\u007f"}) {
    const TemporaryFolder folder;
    write_pack(folder, "images", {field("..(((())", FieldKind::image)}, {{"a.pgm", {"b/victim"}}}, "..(((())", name);
    CHECK_MESSAGE(has(refusal(folder), "a field in it has an empty name, or one with control characters"), name);
  }
  for (const char* name : {"..", "../..", "/etc", "."}) {
    const TemporaryFolder folder;
    write_pack(folder, "images", {field(name, FieldKind::image)}, {{"a.pgm", {"victim"}}});
    CHECK(refusal(folder).empty());
    int64_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path("a"))) {
      files += entry.is_regular_file() ? 1 : 0;
      CHECK(entry.path().string().starts_with(folder.path("a/b")));
    }
    CHECK(files == 2);
  }
  for (const char* name : {"../victim", "/victim", "x/../../victim"}) {
    const TemporaryFolder folder;
    write_pack(folder, "images", {field("mask", FieldKind::mask)}, {{"a.pgm", {name}}});
    CHECK(has(refusal(folder), "is called '" + std::string(name) + "', and cannot be written below"));
  }
}

TEST_CASE("a name that is too long only with what comes behind it is refused before anything is written") {
  const TemporaryFolder folder;
  write_pack(folder, "tar", {}, {{"a"}, {std::string(252, 'k')}});
  CHECK(has(refusal(folder), "a step of it is longer than 255 bytes"));
  write_pack(folder, "images", {field(std::string(255, 'f'), FieldKind::image)}, {{"a.pgm", {"b"}}});
  CHECK(has(refusal(folder), "a step of it is longer than 255 bytes"));
  write_pack(folder, "tar", {}, {{"a"}, {std::string(251, 'k')}});
  CHECK(refusal(folder).empty());
}

TEST_CASE("a damaged record costs its sample alone, also where names are checked by what is in it") {
  const TemporaryFolder folder;
  // Pictures without a name of their own, beside fields that may be called what a picture is.
  write_pack(folder, "tar", {field("jpg")}, {{"a"}, {"b"}, {"c"}});
  const std::string shard = folder.path("pack/" + shard_name(0));
  std::FILE* const file = std::fopen(shard.c_str(), "r+b");
  REQUIRE(file != nullptr);
  REQUIRE(std::fseek(file, sizeof(PackHeader), SEEK_SET) == 0);
  std::fputc('x', file);
  std::fclose(file);
  const UnpackResult result = unpack({.pack = folder.path("pack"), .folder = folder.path("files")});
  CHECK(result.finished);
  REQUIRE(result.damaged.size() == 1);
  CHECK(has(result.damaged[0], "sample 'a' at byte 64 has a wrong checksum"));
  CHECK(result.samples == 2);
  CHECK(result.written == 5);
  for (const char* name : {"b.ppm", "b.jpg", "c.ppm", "c.jpg", "samples.csv"}) {
    CHECK_MESSAGE(std::filesystem::exists(folder.path("files/" + std::string(name))), name);
  }
}

TEST_CASE("names that lead out of a folder") {
  for (const char* name : {"", "/a", "..", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "."}) {
    CHECK_MESSAGE(!unsafe_name(name).empty(), name);
  }
  CHECK(!unsafe_name(std::string("a\0b", 3)).empty());
  CHECK(!unsafe_name(std::string(256, 'x')).empty());
  for (const char* name : {"a", "a/b.jpg", "...", "a/..b", ".hidden", "a b/c\n"}) CHECK(unsafe_name(name).empty());
}

TEST_CASE("two files of one name are found before anything is written") {
  const TemporaryFolder folder;
  const std::string jpeg = "\xFF\xD8 picture";
  const auto pack = [&](const std::string& kind, const std::vector<FieldSpec>& fields,
                        const std::vector<PackedName>& samples) {
    std::filesystem::remove_all(folder.path("a"));
    write_pack(folder, kind, fields, samples);
    return refusal(folder);
  };
  CHECK(has(pack("images", {field("a/b", FieldKind::image), field("a_b", FieldKind::image)}, {{"k.pgm", {"k", "k"}}}),
            "'a_bs/k' would be two files that"));
  CHECK(has(pack("tar", {field("jpg")}, {{"k", {}, jpeg}}), "'k.jpg' would be two files that"));
  CHECK(has(pack("tar", {field("x.jpg")}, {{"k", {}, jpeg}, {"k.x", {}, jpeg}}), "(samples 0, 1)"));
  CHECK(has(pack("tar", {field("csv")}, {{"samples"}}), "'samples.csv' would be two files that"));
  CHECK(has(pack("tar", {}, {{"k"}, {"l"}, {"k"}}), "(samples 0, 2)"));
  CHECK(has(pack("folder", {}, {{"c/k"}, {"c/k/l"}}), "'c/k' would be two files that"));
  CHECK(pack("tar", {field("jpg")}, {{"k"}}).empty());
  CHECK(pack("csv", {}, {{"c/k"}, {"c/k"}, {"c/l"}}).empty());
  CHECK(pack("images", {field("mask", FieldKind::mask)}, {{"k.ppm", {"m"}}, {"l.ppm", {"m"}}}).empty());
}

TEST_CASE("the line of progress") {
  CHECK(progress_line("pack", 1200, 5000, 200, 130'200'000, 10) ==
        "pack: 1200 of 5000 samples, 130.2 MB, 13.0 MB/s, ETA 0:38");
  CHECK(progress_line("pack", 0, 10, 0, 0, 0) == "pack: 0 of 10 samples, 0.0 MB, 0.0 MB/s, ETA 0:00");
}
