// The table of samples, which is the index file: what goes in comes out, and nothing damaged is believed.
#include "runtime/datasets/sample_table.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

using namespace penstock;

namespace {

TableBuilder filled() {
  TableBuilder builder("tar");
  builder.facts().options = "{}";
  builder.facts().classes = {"ant", "bee"};
  const uint32_t shard = builder.add_file({"0.tar", 1000, 7, Codec::none, 0});
  const uint32_t packed = builder.add_file({"1.tar.gz", 100, 8, Codec::gzip, 5000});
  const size_t box = builder.add_field({"box", FieldKind::tensor, DType::float32, {2}});
  const size_t age = builder.add_field({"age", FieldKind::tensor, DType::int64, {}});
  for (int64_t i = 0; i < 5; ++i) {
    builder.add("sample" + std::to_string(i), i % 2, i % 2 == 0 ? shard : packed, static_cast<uint64_t>(100 * i), 50);
    builder.place(box, packed, 4000, 8);
    builder.value(age, std::as_bytes(std::span(&i, 1)));
  }
  builder.header(3, 640, 480);
  return builder;
}

std::vector<uint64_t> copy_of(const SampleTable& table) {
  std::vector<uint64_t> words(table.bytes().size() / 8);
  std::memcpy(words.data(), table.bytes().data(), table.bytes().size());
  return words;
}

SampleTable parse(std::vector<uint64_t> words) {
  const auto owner = std::make_shared<const std::vector<uint64_t>>(std::move(words));
  return SampleTable::parse(std::as_bytes(std::span(*owner)), owner);
}

// Makes the checksums right again, so that the checks behind them are reached.
void seal(std::vector<uint64_t>& words) {
  auto* bytes = reinterpret_cast<std::byte*>(words.data());
  const Sum128 sum = hash128(std::as_bytes(std::span(words)).subspan(96));
  std::memcpy(bytes + 64, &sum.low, 8);
  std::memcpy(bytes + 72, &sum.high, 8);
  std::memset(bytes + 12, 0, 4);
  const uint32_t crc = crc32c(bytes, 96);
  std::memcpy(bytes + 12, &crc, 4);
}

}  // namespace

TEST_CASE("what goes in comes out") {
  const SampleTable table = filled().finish();
  const SampleTable again = parse(copy_of(table));
  REQUIRE(again.size() == 5);
  CHECK(again.key(0) == "sample0");
  CHECK(again.key(4) == "sample4");
  CHECK(again.row(3).label == 1);
  CHECK(again.row(3).width == 640);
  CHECK(again.row(3).offset == 300);
  CHECK(again.facts().files == table.facts().files);
  CHECK(again.facts().classes == std::vector<std::string>{"ant", "bee"});
  CHECK(again.facts().fields[0] == FieldSpec{"box", FieldKind::tensor, DType::float32, {2}});
  CHECK(again.place(0, 2).offset == 4000);
  int64_t age = 0;
  std::memcpy(&age, again.value(again.place(1, 4)).data(), 8);
  CHECK(age == 4);
  CHECK(again.fingerprint() == table.fingerprint());
}

TEST_CASE("the fingerprint is that of keys, labels, fields and classes, not of places") {
  const Sum128 before = filled().finish().fingerprint();
  TableBuilder moved = filled();
  moved.row(2).offset = 7;
  moved.facts().files[0].modified_ns = 9;
  CHECK(moved.finish().fingerprint() == before);
  TableBuilder relabelled = filled();
  relabelled.row(2).label = 1;
  CHECK(relabelled.finish().fingerprint() != before);
  TableBuilder renamed = filled();
  renamed.facts().classes[0] = "asp";
  CHECK(renamed.finish().fingerprint() != before);
}

TEST_CASE("equal keys are found, the first pair first") {
  CHECK(filled().equal_keys() == std::pair<int64_t, int64_t>{-1, -1});
  TableBuilder builder("tar");
  for (const char* key : {"a", "b", "c", "b", "a", "a"}) builder.add(key, 0, kOwnFile, 0, 0);
  CHECK(builder.equal_keys() == std::pair<int64_t, int64_t>{1, 3});
}

TEST_CASE("rows and places outside what they lie in are refused, with right checksums") {
  const auto refusal = [](auto change) {
    TableBuilder builder = filled();
    try {
      change(builder);
      (void)builder.finish();
      return std::string("accepted");
    } catch (const Error& error) {
      return error.message();
    }
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(has(refusal([](TableBuilder& b) { b.row(0).offset = 951; }), "sample 0 in it lies outside its file"));
  CHECK(has(refusal([](TableBuilder& b) { b.row(2).bytes = ~uint64_t{0}; }), "sample 2"));
  CHECK(has(refusal([](TableBuilder& b) { b.row(2).file = 2; }), "sample 2"));
  CHECK(has(refusal([](TableBuilder& b) { b.row(2).label = 2; }), "sample 2"));
  CHECK(has(refusal([](TableBuilder& b) { b.row(2).label = -1; }), "sample 2"));
  CHECK(has(refusal([](TableBuilder& b) { b.row(2).key_end = 3; }), "sample 2"));
  CHECK(has(refusal([](TableBuilder& b) { b.facts().fields[0].shape = {3}; }), "field 'box' of sample 0"));
  CHECK(has(refusal([](TableBuilder& b) { b.facts().fields[0].shape = {int64_t{1} << 40}; }), "too large"));
  CHECK(has(refusal([](TableBuilder& b) { b.facts().fields[0].name = "age"; }), "field twice"));
  CHECK(has(refusal([](TableBuilder& b) { b.facts().pixels = {PixelLayout::grey, 7, 7}; }), "sample 0"));
  CHECK(has(refusal([](TableBuilder& b) { b.facts().files[1].content_bytes = 4007; }), "field 'box'"));
  CHECK(has(refusal([](TableBuilder& b) { b.facts().classes[0] = "\xFF"; }), "not UTF-8"));
  CHECK(refusal([](TableBuilder&) {}) == "accepted");
}

TEST_CASE("every damaged byte and every cut is noticed; with checksums made right, nothing is read outside") {
  const SampleTable table = filled().finish();
  const std::vector<uint64_t> good = copy_of(table);
  int accepted = 0;
  for (size_t at = 0; at < good.size() * 8; ++at) {
    std::vector<uint64_t> words = good;
    reinterpret_cast<unsigned char*>(words.data())[at] ^= 0x41;
    CHECK_THROWS_AS((void)parse(words), Error);
    seal(words);
    try {
      const SampleTable changed = parse(words);
      ++accepted;
      for (int64_t i = 0; i < changed.size(); ++i) (void)changed.key(i);
    } catch (const Error&) {
    }
  }
  CHECK(accepted < static_cast<int>(good.size() * 8));
  for (size_t words = 0; words < good.size(); ++words) {
    CHECK_THROWS_AS((void)parse({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(words)}), Error);
  }
}
