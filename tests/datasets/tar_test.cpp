// Tar archives: what is read, and everything that is refused, by name and offset.
#include <doctest/doctest.h>

#include <random>

#include "runtime/datasets/containers.h"
#include "runtime/datasets/source.h"
#include "runtime/datasets/tar_reader.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/memory_file.h"
#include "tests/support/tar_writer.h"
#include "tests/support/temporary_folder.h"

namespace tar_test {

using namespace penstock;

namespace {

std::vector<TarMember> members_of(const std::string& archive) {
  std::vector<TarMember> out;
  walk_tar(MemoryFile("s.tar", as_bytes_of(archive)), [&](const TarMember& member) { out.push_back(member); });
  return out;
}

// What is wrong with it; "" when nothing is.
std::string refusal(const std::string& archive) {
  try {
    (void)members_of(archive);
    return {};
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::dataset);
    CHECK(!error.remedy().empty());
    return error.message();
  }
}

struct Hostile {
  const char* what;
  std::string archive;
  std::string message;  // after "'s.tar' at byte "
};

std::string base256(uint64_t value, unsigned char first = 0x80) {
  std::string out(12, '\0');
  out[0] = static_cast<char>(first);
  for (int i = 0; i < 8; ++i) out[static_cast<size_t>(11 - i)] = static_cast<char>(value >> (8 * i));
  return out;
}

std::string archive_of(const std::string& name, const std::string& data = "", const TarOptions& options = {}) {
  TarWriter tar;
  tar.member(name, data, options);
  return tar.finish();
}

DatasetSpec tar_spec(const std::string& pattern) {
  DatasetSpec spec;
  spec.tar = pattern;
  return spec;
}

std::unique_ptr<Source> open(const DatasetSpec& spec, FileSystem& files = posix_file_system(),
                             SourceBudget budget = {}) {
  return make_source(spec, DecodeLimits{}, files, nullptr, budget);
}

std::string error_of(const DatasetSpec& spec, SourceBudget budget = {}) {
  try {
    (void)open(spec, posix_file_system(), budget);
    return "no error";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::dataset);
    return error.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size() & 255) +
         static_cast<char>(header.size() >> 8) + header + data;
}

std::string image_of(const Source& source, int64_t index) {
  SourceSample sample;
  DrawKey key;
  key.index = static_cast<uint64_t>(index);
  REQUIRE(source.load(key, sample).ok());
  return {reinterpret_cast<const char*>(sample.image.data()), sample.image.size()};
}

}  // namespace

TEST_CASE("ustar, GNU and pax members, with the sizes and names that each form can have") {
  TarWriter tar;
  tar.member("folder/", "", {.type = '5'});
  const size_t plain = tar.member("./a.jpg", "12345");
  tar.member("b.jpg", "", {.prefix = "deep/er"});
  const std::string name = std::string(150, 'n') + ".png";
  tar.member("././@LongLink", name + '\0', {.type = 'L', .magic = "ustar  "});
  tar.member("cut", std::string(512, 'x'), {.magic = "ustar  "});
  tar.member("pax", TarWriter::pax("mtime", "1.5") + TarWriter::pax("path", "täst/ü.jpg") + TarWriter::pax("size", "3"),
             {.type = 'x'});
  tar.member("other", "abc", {.size = std::string("77777777777\0", 12)});  // what pax says counts
  tar.member("g", TarWriter::pax("comment", "by git archive"), {.type = 'g'});
  tar.member("big", "0123456789", {.size = base256(10)});
  tar.member("old", "x", {.magic = std::string(8, '\0')});

  const auto members = members_of(tar.finish());
  REQUIRE(members.size() == 7);
  CHECK(members[0].folder);
  CHECK(members[1].name == "a.jpg");
  CHECK(members[1].header == plain);
  CHECK(members[1].data == plain + 512);
  CHECK(members[1].size == 5);
  CHECK(members[2].name == "deep/er/b.jpg");
  CHECK(members[3].name == name);
  CHECK(members[3].size == 512);
  CHECK(members[4].name == "täst/ü.jpg");
  CHECK(members[4].size == 3);
  CHECK(members[5].size == 10);
  CHECK(members[6].name == "old");
}

TEST_CASE("hostile archives are refused, each by name and offset") {
  TarWriter cut;
  cut.member("a.jpg", std::string(2000, 'a'));
  TarWriter after;
  after.member("a.jpg", "a");
  const std::string joined = after.finish() + archive_of("b.jpg", "b");
  TarWriter two;
  two.member("a", std::string(100, 'x') + '\0', {.type = 'L'});
  const std::string lone_name = two.finish();
  const std::string gone = cut.bytes().substr(0, 512 + 1024);

  const std::vector<Hostile> table = {
      {"nothing", "", "0: the file is empty"},
      {"text", std::string(2000, 'x'), "0: this is no tar header"},
      {"gzip", "\x1F\x8B" + std::string(1000, 'x'), "0: it is compressed"},
      {"hard link", archive_of("a", "", {.type = '1', .link = "b"}), "0: 'a' is a hard link"},
      {"symbolic link", archive_of("a", "", {.type = '2', .link = "/etc/passwd"}), "0: 'a' is a symbolic link"},
      {"long link", archive_of("a", "x", {.type = 'K'}), "0: 'a' is a link with a long target"},
      {"character device", archive_of("a", "", {.type = '3'}), "0: 'a' is a device"},
      {"block device", archive_of("a", "", {.type = '4'}), "0: 'a' is a device"},
      {"pipe", archive_of("a", "", {.type = '6'}), "0: 'a' is a pipe"},
      {"sparse", archive_of("a", "", {.type = 'S'}), "0: 'a' is a sparse file"},
      {"sparse, pax", archive_of("p", TarWriter::pax("GNU.sparse.major", "1"), {.type = 'x'}), "0: a sparse file"},
      {"volume", archive_of("a", "", {.type = 'M'}), "0: 'a' belongs to an archive of several volumes"},
      {"unknown type", archive_of("a", "", {.type = '\x01'}), "0: 'a' is of an unknown type (byte 1)"},
      {"absolute", archive_of("/etc/passwd"), "0: the name '/etc/passwd' is absolute"},
      {"up", archive_of("../a.jpg"), "0: the name '../a.jpg' has '..' in it"},
      {"up in the middle", archive_of("a/../../b.jpg"), "0: the name 'a/../../b.jpg' has '..' in it"},
      {"up at the end", archive_of("a/..", "", {.type = '5'}), "0: the name 'a/..' has '..' in it"},
      {"up by prefix", archive_of("b.jpg", "", {.prefix = ".."}), "0: the name '../b.jpg' has '..' in it"},
      {"up by pax",
       [] {
         TarWriter tar;
         tar.member("p", TarWriter::pax("path", "x/../y.jpg"), {.type = 'x'});
         tar.member("y.jpg", "");
         return tar.finish();
       }(),
       "1024: the name 'x/../y.jpg' has '..' in it"},
      {"zero byte in a pax name",
       [] {
         TarWriter tar;
         tar.member("p", TarWriter::pax("path", std::string("a\0b", 3)), {.type = 'x'});
         tar.member("y.jpg", "");
         return tar.finish();
       }(),
       "1024: a name with a zero byte"},
      {"no name", archive_of(""), "0: a member without a name"},
      {"beyond the end", archive_of("a", "", {.size = std::string("00000010000\0", 12)}),
       "0: 'a' should have 4096 bytes, and the archive ends after 1024"},
      {"63 bits", archive_of("a", "", {.size = base256(uint64_t{1} << 62)}),
       "0: 'a' should have 4611686018427387904 bytes"},
      {"64 bits", archive_of("a", "", {.size = base256(~uint64_t{0})}), "0: the size is too large for any file"},
      {"more", archive_of("a", "", {.size = std::string(12, '\x7F').replace(0, 1, "\xBF")}),
       "0: the size is too large for any file"},
      {"negative", archive_of("a", "", {.size = base256(~uint64_t{0}, 0xFF)}), "0: the size is negative"},
      {"no number", archive_of("a", "", {.size = std::string("0000000009x\0", 12)}), "0: the size is no octal number"},
      {"pax size", archive_of("p", TarWriter::pax("size", "99999999999999999999"), {.type = 'x'}),
       "0: a pax header whose size is no possible number"},
      {"pax size, negative", archive_of("p", TarWriter::pax("size", "-1"), {.type = 'x'}),
       "0: a pax header whose size is no possible number"},
      {"pax size beyond the end",
       [] {
         TarWriter tar;
         tar.member("p", TarWriter::pax("size", "4000000000000000000"), {.type = 'x'});
         tar.member("y.jpg", "");
         return tar.finish();
       }(),
       "1024: 'y.jpg' should have 4000000000000000000 bytes"},
      {"pax record", archive_of("p", "99 path=x\n", {.type = 'x'}), "0: a damaged pax header"},
      {"pax record, 0", archive_of("p", "0 path=x\n", {.type = 'x'}), "0: a damaged pax header"},
      {"pax record, text", archive_of("p", "path=x\n", {.type = 'x'}), "0: a damaged pax header"},
      {"pax for all", archive_of("p", TarWriter::pax("path", "x"), {.type = 'g'}),
       "0: a pax header that names all members alike"},
      {"huge pax", archive_of("p", std::string((1 << 20) + 1, 'x'), {.type = 'x'}),
       "0: an extended header of 1048577 bytes"},
      {"huge name", archive_of("p", std::string(5000, 'x'), {.type = 'L'}), "0: an extended header of 5000 bytes"},
      {"two names", archive_of("p", "x", {.type = 'L'}).substr(0, 1024) + lone_name,
       "1024: two long names follow each other"},
      {"a name of nothing", lone_name, "1024: the archive ends after an extended header"},
      {"checksum", archive_of("a", "", {.wrong_sum = true}), "0: this is no tar header"},
      {"cut in the data", gone, "0: 'a.jpg' should have 2000 bytes, and the archive ends after 1024"},
      {"cut in the padding", cut.bytes().substr(0, 512 + 2000), "0: 'a.jpg' should have 2000 bytes"},
      {"cut after a member", cut.bytes(), "2560: the archive ends without its end mark"},
      {"cut in a header", cut.finish().substr(0, 2560 + 100), "2560: the archive ends without its end mark"},
      {"joined", joined, "2048: there is something after the archive's end mark"},
      {"folder with data", archive_of("a/", std::string(10, 'x'), {.type = '5'}), "0: folder 'a/' has a size"},
  };
  for (const Hostile& hostile : table) {
    INFO(hostile.what);
    const std::string message = refusal(hostile.archive);
    CHECK_MESSAGE(message.starts_with("'s.tar' at byte " + hostile.message), message);
  }
}

TEST_CASE("whatever is changed or cut, the walk ends with an answer, and members lie inside the archive") {
  TarWriter tar;
  tar.member("a.jpg", std::string(700, 'a'));
  tar.member("x", TarWriter::pax("path", "b.jpg") + TarWriter::pax("size", "9"), {.type = 'x'});
  tar.member("b", "123456789");
  const std::string whole = tar.finish();
  const uint64_t seed = std::random_device()();
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string archive = whole;
    for (uint64_t i = random() % 4; i > 0; --i) archive[random() % archive.size()] = static_cast<char>(random());
    if (round % 3 == 0) archive.resize(random() % archive.size());
    try {
      for (const TarMember& member : members_of(archive)) {
        REQUIRE(member.data <= archive.size());
        REQUIRE(member.size <= archive.size() - member.data);
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("members with one base name are a sample: webdataset's rule") {
  TemporaryFolder folder;
  TarWriter first;
  first.member("set/", "", {.type = '5'});
  first.member("set/0.a.JPG", "not this one");  // suffix a.jpg: no picture by itself
  first.member("set/0.jpg", "zero");
  first.member("set/0.cls", "7\n");
  first.member("set/0.json", "{}");
  first.member("readme", "no dot");
  first.member(".hidden.jpg", "begins with one");
  first.member("__shard__/0.jpg", "webdataset's own");
  first.member("other/0.cls", "-3");
  first.member("other/0.PNG", "one");
  folder.write("s-08.tar", first.finish());
  TarWriter second;
  second.member("1.jpeg", "two");
  second.member("1.cls", "12");
  folder.write("s-09.tar", second.finish());

  const auto source = open(tar_spec(folder.path("s-{08..09}.tar")));
  REQUIRE(source->size() == 3);
  CHECK(source->key(0) == "set/0");
  CHECK(source->key(1) == "other/0");
  CHECK(source->key(2) == "1");
  CHECK(source->label(0) == 7);
  CHECK(source->label(1) == -3);
  CHECK(source->label(2) == 12);
  CHECK(source->class_names().empty());
  CHECK(source->encoded_size(2) == 3);
  CHECK(image_of(*source, 0) == "zero");
  CHECK(image_of(*source, 1) == "one");
  CHECK(image_of(*source, 2) == "two");
  CHECK(open(tar_spec(folder.path("s-*.tar")))->fingerprint() == source->fingerprint());
  CHECK(open(tar_spec(folder.path("s-{09,08}.tar")))->fingerprint() != source->fingerprint());

  DatasetSpec other = tar_spec(folder.path("s-08.tar"));
  other.image = "a.jpg";
  CHECK(contains(error_of(other), "at byte 7680: sample 'other/0' has no member '.a.jpg'"));
}

TEST_CASE(".npy members are fields") {
  TemporaryFolder folder;
  TarWriter tar;
  tar.member("0.jpg", "zero");
  tar.member("0.box.npy", npy("<f4", "(2, 2)", std::string(16, '\1')));
  tar.member("0.npy", npy("<i8", "()", std::string(8, '\2')));
  tar.member("1.jpg", "one");
  tar.member("1.box.npy", npy("<f4", "(2, 2)", std::string(16, '\3')));
  tar.member("1.npy", npy("<i8", "()", std::string(8, '\4')));
  folder.write("a.tar", tar.finish());
  DatasetSpec spec = tar_spec(folder.path("a.tar"));
  spec.fields = "box, npy";
  const auto source = open(spec);
  REQUIRE(source->fields().size() == 4);
  CHECK(source->fields()[2] == FieldSpec{"box", FieldKind::tensor, DType::float32, {2, 2}});
  CHECK(source->fields()[3] == FieldSpec{"npy", FieldKind::tensor, DType::int64, {}});
  SourceSample sample;
  DrawKey key;
  key.index = 1;
  REQUIRE(source->load(key, sample).ok());
  REQUIRE(sample.fields.size() == 2);
  REQUIRE(sample.fields[0].size() == 16);
  CHECK(sample.fields[0][15] == std::byte{3});
  CHECK(sample.fields[1].size() == 8);
  CHECK(sample.fields[1][0] == std::byte{4});
  CHECK(sample.label == 0);

  spec.fields = "box.npy, npy:bytes";  // by the member's whole name, too; and what is said of the kind holds
  const auto named = open(spec);
  CHECK(named->fields()[2] == FieldSpec{"box.npy", FieldKind::tensor, DType::float32, {2, 2}});
  CHECK(named->fields()[3].kind == FieldKind::bytes);
  spec.fields = "box, npy";

  tar.member("2.jpg", "two");
  tar.member("2.npy", npy("<i8", "()", std::string(8, '\4')));
  tar.member("2.box.npy", npy("<f4", "(4,)", std::string(16, '\3')));
  folder.write("a.tar", tar.finish());
  CHECK(contains(error_of(spec), "differs from the first sample's in dtype or shape"));
  spec.fields = "depth";
  CHECK(contains(error_of(spec), "sample '0' has no member '.depth' for field 'depth'; it has .box.npy, .jpg, .npy"));
}

TEST_CASE("other members are text or bytes, of any length up to the limit") {
  TemporaryFolder folder;
  TarWriter tar;
  for (const char* number : {"0", "1"}) {
    tar.member(std::string(number) + ".jpg", "x");
    tar.member(std::string(number) + ".txt", *number == '0' ? "short" : std::string(3000, 'l'));
    tar.member(std::string(number) + ".pose.json", "{}");
    tar.member(std::string(number) + ".pyd", "bytes");
  }
  folder.write("a.tar", tar.finish());
  DatasetSpec spec = tar_spec(folder.path("a.tar"));
  spec.fields = "txt, pose.json, pyd, pyd2:text";
  CHECK(contains(error_of(spec), "has no member '.pyd2' for field 'pyd2'"));
  spec.fields = "txt, pose.json, pyd";
  const auto source = open(spec);
  REQUIRE(source->fields().size() == 5);
  CHECK(source->fields()[2].kind == FieldKind::text);
  CHECK(source->fields()[3].kind == FieldKind::text);
  CHECK(source->fields()[4].kind == FieldKind::bytes);
  SourceSample sample;
  DrawKey key;
  key.index = 1;
  REQUIRE(source->load(key, sample).ok());
  REQUIRE(sample.fields.size() == 3);
  CHECK(sample.fields[0].size() == 3000);
  CHECK(sample.fields[2].size() == 5);
  DecodeLimits small;
  small.max_field_bytes = 2999;
  const auto limited = make_source(spec, small);
  CHECK(contains(limited->load(key, sample).reason, "field 'txt' has 3000 bytes"));
  key.index = 0;
  CHECK(limited->load(key, sample).ok());
}

TEST_CASE("samples that are not whole, or there twice, are refused by shard and offset") {
  TemporaryFolder folder;
  const auto complaint = [&](const std::vector<std::pair<std::string, std::string>>& members) {
    TarWriter tar;
    for (const auto& [name, data] : members) tar.member(name, data);
    folder.write("x.tar", tar.finish());
    return error_of(tar_spec(folder.path("x.tar")));
  };
  const std::string at = "'" + folder.path("x.tar") + "' at byte ";
  CHECK(contains(complaint({{"a.jpg", ""}, {"a.cls", "1"}, {"b.cls", "1"}}),
                 at + "1536: sample 'b' has no picture; it has .cls"));
  CHECK(contains(complaint({{"a.jpg", ""}, {"a.png", ""}}), at + "0: sample 'a' has several pictures: .jpg, .png"));
  CHECK(contains(complaint({{"a.jpg", ""}, {"a.cls", "1"}, {"b.jpg", ""}}),
                 at + "1536: sample 'b' has no label '.cls', and those before it have one"));
  CHECK(contains(complaint({{"a.jpg", ""}, {"b.jpg", ""}, {"b.cls", "1"}}),
                 at + "512: sample 'b' has a label '.cls', and those before it have none"));
  CHECK(
      contains(complaint({{"a.jpg", ""}, {"a.cls", "cat"}}), at + "512: the label of sample 'a' is no integer: 'cat'"));
  CHECK(contains(complaint({{"a.jpg", ""}, {"a.cls", "99999999999999999999"}}), "is no integer"));
  CHECK(contains(complaint({{"a.jpg", ""}, {"a.JPG", ""}}), at + "512: sample 'a' has two members '.jpg'"));
  CHECK(contains(complaint({{"a.jpg", ""}, {"b.jpg", ""}, {"a.png", ""}}),
                 "sample 'a' is there twice: in 'x.tar' at byte 0 and in 'x.tar' at byte 1024"));
  CHECK(contains(complaint({{"readme", ""}}), "holds no sample"));
  TarWriter tar;
  tar.member("a.jpg", "");
  folder.write("y.tar", tar.finish());
  folder.write("z.tar", tar.finish());
  CHECK(contains(error_of(tar_spec(folder.path("{y,z}.tar"))),
                 "sample 'a' is there twice: in 'y.tar' at byte 0 and in 'z.tar' at byte 0"));
  CHECK(contains(error_of(tar_spec(folder.path("{0..2}.tar"))), "0.tar"));
}

TEST_CASE("a shard that fails or changes while it is read is an Error naming it") {
  TemporaryFolder folder;
  TarWriter tar;
  tar.member("a.jpg", std::string(9000, 'a'));
  folder.write("s.tar", tar.finish());
  FaultyFileSystem disk;
  const auto source = open(tar_spec(folder.path("s.tar")), disk);
  std::vector<std::byte> bytes;
  CHECK(source->read(0, bytes).ok());
  disk.fail_read("s.tar");
  CHECK_THROWS_WITH_AS((void)source->read(0, bytes), doctest::Contains(folder.path("s.tar").c_str()), Error);
  disk.repair();
  DecodeLimits small;
  small.max_encoded_bytes = 8999;
  const auto limited = make_source(tar_spec(folder.path("s.tar")), small);
  CHECK(contains(limited->read(0, bytes).reason, "9000 bytes"));
}

}  // namespace tar_test
