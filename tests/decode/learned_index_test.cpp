// Indexes learned while decoding: with one, whole or partial, of sound files and damaged ones, status and bytes are the
// reference's; and the store that keeps them knows bytes, bounds and threads.
#include "runtime/decode/jpeg/learned_index.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/coefficient_rows.h"
#include "runtime/decode/jpeg/jpeg_decoder.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "tests/decode/jpeg_files.h"

namespace learned_index_test {

namespace {

using namespace penstock;
using penstock_test::draw;
using penstock_test::full;
using penstock_test::JpegSpec;
using penstock_test::make_jpeg;
using penstock_test::random_spec;
using File = std::vector<std::byte>;

struct Decoded {
  SampleStatus status;
  std::string pixels;
};

template <class Decode>
Decoded decoded(const Box& box, const Decode& decode) {
  PixelBuffer storage;
  PixelView view;
  Decoded result{decode(storage, view), {}};
  for (int y = 0; result.status.ok() && y < box.height; ++y) {
    result.pixels.append(reinterpret_cast<const char*>(view.row(y)), static_cast<size_t>(box.width) * 3);
  }
  return result;
}

Box random_box(std::mt19937& random, int width, int height) {
  const int w = draw(random, 1, width);
  const int h = draw(random, 1, random() % 3 == 0 ? std::min(height, 24) : height);
  return {draw(random, 0, width - w), draw(random, 0, height - h), w, h};
}

// A file of any kind; every other one is long enough for vector lanes.
JpegSpec any_spec(std::mt19937& random, int number) {
  JpegSpec spec = random_spec(random, 120);
  if (number % 2 == 0) {
    spec.width = draw(random, 100, 700);
    spec.height = draw(random, 100, 500);
    spec.quality = draw(random, 30, 98);
    spec.noise_bits = draw(random, 4, 8);
    spec.restart = number % 16 == 0 ? draw(random, 1, 9) : 0;
  }
  spec.progressive = number % 23 == 0;
  return spec;
}

void damage(std::mt19937& random, File& file) {
  const size_t last = file.size();
  for (int n = draw(random, 0, 4); n > 0; --n)
    file[last / 5 + random() % (last - last / 5)] = static_cast<std::byte>(random());
  if (random() % 2 == 0) file.resize(last - random() % (last - last / 3));
}

TEST_CASE("with what was learned, status and bytes are the reference's") {
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  int64_t learned = 0;
  int64_t longer = 0;
  int64_t used = 0;
  int64_t bad = 0;
  int64_t damaged_and_used = 0;
  int64_t compared = 0;
  for (int i = 0; i < (full() ? 6000 : 120); ++i) {
    const JpegSpec spec = any_spec(random, i);
    INFO("file ", i);
    File file = make_jpeg(spec);
    const bool damaged = i % 3 == 1;
    if (damaged) damage(random, file);
    const int interval = i % 4 == 0 ? 0 : draw(random, 1, 60);
    JpegDecoder decoder({}, {.learned_interval = interval});
    ImageHeader header;
    if (!read_header(file, {}, header).ok()) continue;
    SideIndex all;
    bool sound = false;
    SideIndex index;
    for (int b = 0; b < 6; ++b) {
      const Box box = random_box(random, header.width, header.height);
      INFO("box ", box.x, " ", box.y, " ", box.width, " ", box.height, ", points ", index.size());
      SideIndex more;
      const SideIndex* const known = index.empty() ? nullptr : &index;
      const Decoded got = decoded(box, [&](PixelBuffer& storage, PixelView& view) {
        return decoder.decode(file, header, box, storage, view, {.index = known, .learned = &more});
      });
      const Decoded want = decoded(box, [&](PixelBuffer& storage, PixelView& view) {
        return decoder.decode_reference(file, header, box, storage, view);
      });
      REQUIRE(got.status.ok() == want.status.ok());
      REQUIRE(got.status.reason == want.status.reason);
      REQUIRE(got.pixels == want.pixels);
      bad += got.status.ok() ? 0 : 1;
      used += known != nullptr ? 1 : 0;
      damaged_and_used += known != nullptr && damaged ? 1 : 0;
      if (more.empty()) continue;
      REQUIRE(got.status.ok());
      REQUIRE(more.size() > index.size());
      if (index.empty()) sound = build_side_index(file, {.interval = more.interval()}, all);
      if (sound) REQUIRE(more.size() <= all.size());
      for (size_t n = 0; n < more.size(); ++n) {
        if (n < index.size()) REQUIRE(more.at(n) == index.at(n));
        if (sound) REQUIRE(more.at(n) == all.at(n));
      }
      ++(index.empty() ? learned : longer);
      compared += sound ? 1 : 0;
      index = more;
    }
    if (spec.restart != 0 || spec.progressive) CHECK(index.empty());
  }
  MESSAGE(learned, " learned, ", longer, " made longer, ", used, " used (", damaged_and_used, " of damaged files), ",
          bad, " bad");
  CHECK(learned > 0);
  CHECK(longer > 0);
  CHECK(used > 0);
  CHECK(damaged_and_used > 0);
  CHECK(compared > 0);
  CHECK(bad > 0);
}

// libjpeg-turbo reads ahead: over fill bytes, and where no marker follows them it meets the file's end and says so.
TEST_CASE("whatever stands where the scan should end, a partial index whose last point is near it changes no status") {
  const std::vector<std::vector<int>> ends{{},
                                           {0xFF},
                                           {0xFF, 0xFF},
                                           {0xFF, 0xFF, 0xFF},
                                           {0xFF, 0xD9},
                                           {0xFF, 0xFF, 0xD9},
                                           {0xFF, 0xFF, 0x00},
                                           {0xFF, 0x01},
                                           {0xFF, 0xD0},
                                           {0x00},
                                           {0x00, 0xFF, 0xD9},
                                           {0xFF, 0x00, 0xFF, 0xD9}};
  int good = 0;
  int bad = 0;
  int with_points = 0;
  for (const JpegSpec& base : {JpegSpec{}, JpegSpec{.h = 1, .v = 1}, JpegSpec{.grey = true}}) {
    for (const int columns : {12, 40, 200}) {
      JpegSpec spec = base;
      spec.width = columns;
      spec.height = 88;
      File scan = make_jpeg(spec);
      REQUIRE(scan.size() > 2);
      REQUIRE(scan[scan.size() - 2] == std::byte{0xFF});
      scan.resize(scan.size() - 2);
      for (size_t e = 0; e < ends.size(); ++e) {
        File file = scan;
        for (const int byte : ends[e]) file.push_back(static_cast<std::byte>(byte));
        const ImageHeader header{ImageFormat::jpeg, spec.width, spec.height};
        for (const int interval : {1, 3, 5, 30}) {
          JpegDecoder decoder({}, {.learned_interval = interval});
          SideIndex index;
          (void)decoded({0, 0, spec.width, 60}, [&](PixelBuffer& storage, PixelView& view) {
            return decoder.decode(file, header, {0, 0, spec.width, 60}, storage, view, {.learned = &index});
          });
          with_points += index.empty() ? 0 : 1;
          for (const int reduction : {1, 2}) {
            INFO("end ", e, ", ", spec.width, " wide, every ", interval, " MCUs, 1/", reduction);
            const Box judged{0, 60, spec.width, 28};
            const Box box{0, 60 / reduction, (spec.width + reduction - 1) / reduction, 28 / reduction};
            DecodeOptions decode_options{.index = index.empty() ? nullptr : &index, .reduction = reduction};
            if (reduction > 1) decode_options.judged = judged;
            const Decoded got = decoded(box, [&](PixelBuffer& storage, PixelView& view) {
              return decoder.decode(file, header, box, storage, view, decode_options);
            });
            const Decoded want = decoded(judged, [&](PixelBuffer& storage, PixelView& view) {
              return decoder.decode_reference(file, header, judged, storage, view);
            });
            REQUIRE(got.status.reason == want.status.reason);
            if (reduction == 1) REQUIRE(got.pixels == want.pixels);
            (want.status.ok() ? good : bad)++;
          }
        }
      }
    }
  }
  CHECK(good > 0);
  CHECK(bad > 0);
  CHECK(with_points > 0);
}

struct Rows {
  bool supported = false;
  std::vector<int16_t> coefficients;
};

Rows read_rows(CoefficientRows& rows, const File& file, const JpegFrame& frame, const Box& box, bool lanes,
               const SideIndex* index, RestartPointNotes* notes) {
  const McuWindow window = mcu_window(frame, box);
  const size_t size = window.most_coefficients(frame);
  Rows result;
  result.supported = rows.begin(file, frame, index, window, lanes, notes);
  for (int row = window.first_row; result.supported && row < window.end_row; ++row) {
    const size_t at = result.coefficients.size();
    result.coefficients.resize(at + size, int16_t{77});
    result.supported = rows.read_row(row, window.target(frame, row, result.coefficients.data() + at));
  }
  result.supported = result.supported && rows.finish();
  return result;
}

// Lanes and plain decoding note the same points, all of them, and go on from them alike.
TEST_CASE("points are noted one by one, whichever way rows are read") {
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  CoefficientRows rows;
  int64_t noted = 0;
  for (int i = 0; i < (full() ? 2000 : 60); ++i) {
    JpegSpec spec = any_spec(random, i);
    spec.restart = 0;
    spec.progressive = false;
    const File file = make_jpeg(spec);
    JpegFrame frame;
    SideIndex all;
    const int interval = draw(random, 1, 40);
    if (!read_baseline_frame(file, frame) || !build_side_index(file, {.interval = interval}, all)) continue;
    const int64_t mcus = int64_t{frame.mcu_columns} * frame.mcu_rows;
    for (const bool lanes : {false, true}) {
      SideIndex index(interval, frame.components, true);
      for (int b = 0; b < 4; ++b) {
        const Box box = random_box(random, frame.width, frame.height);
        INFO("file ", i, ", lanes ", lanes, ", box ", box.x, " ", box.y, " ", box.width, " ", box.height);
        RestartPointNotes notes;
        notes.begin(interval, static_cast<int64_t>(index.size()) * interval, mcus);
        const Rows got = read_rows(rows, file, frame, box, lanes, index.empty() ? nullptr : &index, &notes);
        const Rows want = read_rows(rows, file, frame, box, false, nullptr, nullptr);
        REQUIRE(want.supported);
        // At a file's very end lanes may be unsure.
        if (!got.supported) {
          CHECK(lanes);
          continue;
        }
        REQUIRE(got.coefficients == want.coefficients);
        for (const RestartPoint& point : notes.points()) REQUIRE(index.add(point));
        REQUIRE(index.size() <= all.size());
        for (size_t n = 0; n < index.size(); ++n) REQUIRE(index.at(n) == all.at(n));
        // None is missing of the rows that were passed.
        const int64_t passed = int64_t{mcu_window(frame, box).end_row} * frame.mcu_columns;
        CHECK(static_cast<int64_t>(index.size()) * interval >= std::min(passed, mcus));
        noted += static_cast<int64_t>(notes.points().size());
      }
    }
  }
  CHECK(noted > 0);
}

// What the store keeps needs no file: it looks at bytes as a whole.
SideIndex points(int count) {
  SideIndex index(4, 3, true);
  for (int n = 0; n < count; ++n) REQUIRE(index.add({static_cast<uint32_t>(100 + 40 * n), 3, {1, 2, 3}}));
  return index;
}
File bytes_of(int value, size_t size = 1000) {
  return File(size, static_cast<std::byte>(value));
}

TEST_CASE("an index is found by the bytes it was learned of, and a longer one takes its place") {
  const auto memory = std::make_shared<LearnedMemory>(1 << 20);
  {
    LearnedIndexes indexes(memory);
    const File file = bytes_of(1);
    CHECK(indexes.find(7, file) == nullptr);
    indexes.keep(7, file, nullptr, points(10));
    const auto known = indexes.find(7, file);
    REQUIRE(known != nullptr);
    CHECK(known->index == points(10));
    CHECK(indexes.find(8, file) == nullptr);
    indexes.keep(7, file, known, points(20));
    indexes.keep(7, file, known, points(15));  // another thread's, that came later
    CHECK(indexes.find(7, file)->index.size() == 20);
    CHECK(known->index.size() == 10);  // who has it keeps it
    CHECK(memory->figures().photos == 1);
    CHECK(memory->figures().used == 2);
    CHECK(memory->figures().bytes >= static_cast<int64_t>(points(20).bytes()));

    // The file was written over: one byte, or its length.
    File changed = file;
    changed[500] = std::byte{9};
    CHECK(indexes.find(7, changed) == nullptr);
    CHECK(indexes.find(7, std::span(file).first(999)) == nullptr);
    indexes.keep(7, changed, nullptr, points(5));
    CHECK(indexes.find(7, changed)->index.size() == 5);
    CHECK(indexes.find(7, file) == nullptr);
    CHECK(memory->figures().photos == 1);
  }
  CHECK(memory->figures().photos == 0);
  CHECK(memory->figures().bytes == 0);
}

TEST_CASE("memory is bounded over all datasets, and given back") {
  const auto memory = std::make_shared<LearnedMemory>(20'000);
  LearnedIndexes one(memory);
  auto other = std::make_unique<LearnedIndexes>(memory);
  const File file = bytes_of(1);
  for (int i = 0; i < 100; ++i) {
    (i % 2 == 0 ? one : *other).keep(i, file, nullptr, points(100));
    REQUIRE(memory->figures().bytes <= 20'000);
  }
  const LearnedFigures before = memory->figures();
  CHECK(before.photos >= 15);
  CHECK(memory->full());
  CHECK_FALSE(one.learns());
  CHECK(one.find(0, file) != nullptr);  // what came first stays
  CHECK(one.find(98, file) == nullptr);
  one.keep(0, file, one.find(0, file), points(2000));  // there is no room for a longer one either
  CHECK(one.find(0, file)->index.size() == 100);

  other.reset();
  CHECK(one.learns());
  CHECK(memory->figures().photos < before.photos);
  one.keep(98, file, nullptr, points(100));
  CHECK(one.find(98, file) != nullptr);

  // Chunk buffers take the room: indexes go as their samples are met, until the rest is within.
  memory->set_limit(5'000);
  CHECK_FALSE(one.learns());
  for (int i = 0; i < 100; ++i) one.find(i, file);
  CHECK(memory->figures().bytes <= 5'000);
  CHECK(memory->figures().photos > 0);
  memory->set_limit(20'000);
  CHECK(one.learns());
}

TEST_CASE("many threads learn and look at once") {
  const auto memory = std::make_shared<LearnedMemory>(60'000);
  LearnedIndexes indexes(memory);
  std::vector<File> files;
  for (int i = 0; i < 40; ++i) files.push_back(bytes_of(i));
  std::atomic<int64_t> wrong{0};
  std::atomic<int64_t> found{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      size_t longest[40] = {};
      for (int n = 0; n < 4000; ++n) {
        const int i = draw(random, 0, 39);
        const auto at = static_cast<size_t>(i);
        const auto known = indexes.find(i, files[at]);
        const size_t size = known ? known->index.size() : 0;
        if (known && known->sum != hash128(files[at])) ++wrong;
        if (size < longest[i]) ++wrong;  // it never becomes shorter
        longest[i] = size;
        found += known ? 1 : 0;
        SideIndex more(4, 3, true);
        for (uint32_t p = 0; p < size + 1 + random() % 8; ++p) more.add({100 + 40 * p, 3, {1, 2, 3}});
        if (indexes.learns() && more.size() < 300) indexes.keep(i, files[at], known, std::move(more));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(found > 0);
  CHECK(memory->figures().used == found);
  CHECK(memory->figures().bytes <= 60'000);
  CHECK(memory->figures().photos == 40);
}

}  // namespace

}  // namespace learned_index_test
