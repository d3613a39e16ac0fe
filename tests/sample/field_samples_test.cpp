// Fields besides image and label, from a source to a sample: texts and bytes of any length, and what becomes of them
// where a sample cannot be used.
#include <doctest/doctest.h>

#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/field_value.h"
#include "runtime/report/contact_sheet.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "tests/support/memory_source.h"

namespace penstock {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

constexpr int kTooLong = 2;
constexpr int kNoText = 5;

// Eight samples with a text, a box and bytes; number 2 has a text above the limit, number 5 one that is none.
std::unique_ptr<Source> some_source() {
  auto source = std::make_unique<MemorySource>(FieldTable{
      {"caption", FieldKind::text}, {"box", FieldKind::tensor, DType::int32, {2}}, {"blob", FieldKind::bytes}});
  for (int i = 0; i < 8; ++i) {
    const std::vector<uint8_t> rgb(16 * 16 * 3, static_cast<uint8_t>(20 * i));
    const auto n = static_cast<size_t>(i);
    const std::string caption = i == kTooLong ? std::string(101, 'x') : i == kNoText ? "\xFF" : std::string(n, 'a');
    source->add(
        "picture " + std::to_string(i), i, encode_png(rgb.data(), 16, 16),
        {bytes_of(caption), bytes_of("box " + std::to_string(1000 + i)), bytes_of(std::string(100 - n, '\xFE'))});
  }
  return source;
}

ResolvedSplit some_split(const std::string& keys) {
  const std::string text = "limits: {max_field_bytes: 100}\n" + keys +
                           "splits: {s: {dataset: {folder: x}, batch_size: 2, pipeline: [{CenterCrop: {size: 8}}]}}\n";
  return resolve_split(parse_job(text, "job.yaml"), "s");
}

struct Made {
  SampleRecord record;
  std::vector<std::vector<std::byte>> rooms;
  std::string caption, box, blob;
};

Made make(SampleMaker& maker, const FieldTable& fields, int64_t index) {
  Made made;
  std::vector<std::byte*> places;
  for (const FieldSpec& field : fields) {
    made.rooms.emplace_back(field.bytes_per_sample(), std::byte{0xA5});
    places.push_back(made.rooms.back().data());
  }
  made.record = maker.make({index, index, 0, true}, 0, places);
  made.caption = as_text(varying_value(fields[2], places[2]));
  made.box = as_text(stored_bytes(fields[3], places[3]));
  made.blob = as_text(varying_value(fields[4], places[4]));
  return made;
}

TEST_CASE("every sample has its values; a text that cannot be used spoils its sample") {
  const auto context = SplitContext::with_source(some_split("on_error: fail\n"), some_source());
  const FieldTable& fields = context->fields();
  REQUIRE(fields.size() == 5);
  CHECK(fields[2].max_bytes == 100);
  CHECK(fields[4].bytes_per_sample() == 104);
  SampleMaker maker(context);
  for (int i = 0; i < 8; ++i) {
    const Made made = make(maker, fields, i);
    if (i == kTooLong || i == kNoText) {
      CHECK(made.record.bad);
      CHECK(made.record.reason == (i == kTooLong ? "field 'caption' has 101 bytes, above limits.max_field_bytes (100)"
                                                 : "field 'caption' is not UTF-8 text at byte 0"));
      CHECK(made.caption.empty());
      CHECK(made.box == std::string(8, '\0'));
      CHECK(made.blob.empty());
      CHECK(made.rooms[0] == std::vector<std::byte>(made.rooms[0].size()));
      continue;
    }
    CHECK(made.record.reason.empty());
    CHECK(made.caption == std::string(static_cast<size_t>(i), 'a'));
    CHECK(made.box == "box " + std::to_string(1000 + i));
    CHECK(made.blob == std::string(100 - static_cast<size_t>(i), '\xFE'));
  }
}

TEST_CASE("a substitute brings its own values") {
  const auto context = SplitContext::with_source(some_split("on_error: substitute\n"), some_source());
  SampleMaker maker(context);
  const Made made = make(maker, context->fields(), kTooLong);
  REQUIRE(made.record.substituted);
  const auto other = static_cast<size_t>(made.record.index);
  CHECK(made.caption == std::string(other, 'a'));
  CHECK(made.blob == std::string(100 - other, '\xFE'));
}

TEST_CASE("labels that mean nothing are not mixed") {
  const auto split = resolve_split(parse_job("splits: {s: {dataset: {folder: x}, batch_size: 2, pipeline: "
                                             "[{CenterCrop: {size: 8}}, {CutMix: {num_classes: 8}}]}}\n",
                                             "job.yaml"),
                                   "s");
  CHECK(SplitContext::with_source(split, some_source()) != nullptr);
  auto source = std::make_unique<MemorySource>();
  const std::vector<uint8_t> rgb(16 * 16 * 3);
  source->add("picture", 0, encode_png(rgb.data(), 16, 16));
  source->forget_labels();
  CHECK_THROWS_WITH_AS(SplitContext::with_source(split, std::move(source)),
                       doctest::Contains("MixUp and CutMix mix labels, and"), Error);
}

}  // namespace
}  // namespace penstock
