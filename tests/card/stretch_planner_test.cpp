// Which stretches a card gets, and that its threads keep to them, whatever file and index say.
#include "runtime/card/stretch_planner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "runtime/card/coefficient_reader.h"
#include "runtime/card/entropy_kernel.h"
#include "runtime/decode/decoder.h"
#include "runtime/decode/zigzag.h"
#include "tests/card/arena.h"
#include "tests/decode/jpeg_files.h"

namespace {

using namespace penstock;
using namespace penstock_test;
using File = std::vector<std::byte>;

McuWindow window_of(const JpegFrame& frame, int first_column, int end_column, int first_row, int end_row) {
  McuWindow window;
  window.columns = {first_column, std::min(end_column, frame.mcu_columns)};
  window.first_row = window.first_luma_row = first_row;
  window.end_row = window.end_luma_row = std::min(end_row, frame.mcu_rows);
  return window;
}

// With some bits of its points changed.
SideIndex changed(const SideIndex& index, std::mt19937& random, int changes) {
  std::string text = index.serialise();
  for (int i = 0; i < changes; ++i) {
    text[static_cast<size_t>(draw(random, 8, static_cast<int>(text.size()) - 1))] ^=
        static_cast<char>(1 << draw(random, 0, 7));
  }
  SideIndex made;
  REQUIRE(SideIndex::read(std::as_bytes(std::span(text)), made));
  return made;
}

}  // namespace

TEST_CASE("bytes and entry points of exactly the stretches that the window needs") {
  const File file = make_jpeg({.width = 320, .height = 160});
  JpegFrame frame;
  SideIndex index;
  REQUIRE(read_baseline_frame(file, frame));
  REQUIRE(build_side_index(file, {.interval = 4}, index));
  StretchPlanner planner;
  REQUIRE(planner.plan(file, frame, &index, window_of(frame, 5, 7, 2, 5)));
  // MCUs 45 and 46, 65 and 66, 85 and 86: the points before them, and the last one to its end.
  REQUIRE(planner.stretches().size() == 3);
  std::vector<std::byte> copied(planner.bytes());
  planner.copy_bytes(copied.data());
  for (size_t i = 0; i < 3; ++i) {
    const CardStretch& stretch = planner.stretches()[i];
    CHECK(stretch.first_mcu == 44 + 20 * i);
    CHECK(stretch.mcus == (i < 2 ? 3 : 4));
    CHECK((stretch.end == CardStretch::End::point) == (i == 2));
    const EntryPoint from = index.at(stretch.first_mcu / 4);
    const EntryPoint to = index.at(stretch.first_mcu / 4 + 1);
    CHECK(stretch.bit == from.bit);
    CHECK(stretch.end_bit == to.bit);
    CHECK(stretch.end_byte - stretch.byte == to.byte - from.byte);
    CHECK(std::memcmp(copied.data() + stretch.byte, file.data() + from.byte, to.byte - from.byte + 2) == 0);
  }
  // All of it is one piece, from the first point to the marker.
  REQUIRE(planner.plan(file, frame, &index, window_of(frame, 0, 99, 0, 99)));
  CHECK(planner.bytes() == file.size() - frame.scan_begin);
  CHECK(planner.stretches().back().end == CardStretch::End::marker);
}

TEST_CASE("what is not for a card's threads") {
  const File file = make_jpeg({.width = 800, .height = 160, .noise_bits = 8});
  JpegFrame frame;
  SideIndex index;
  REQUIRE(read_baseline_frame(file, frame));
  REQUIRE(build_side_index(file, {.interval = 1}, index));
  StretchPlanner planner;
  const McuWindow window = window_of(frame, 0, 2, 0, 1);
  CHECK(planner.plan(file, frame, &index, window));
  CHECK_FALSE(planner.plan(file, frame, nullptr, window));
  CHECK_FALSE(planner.plan(std::span(file).first(file.size() / 4), frame, &index, window_of(frame, 0, 99, 0, 99)));

  SUBCASE("a fill byte where the scan ends, behind which libjpeg-turbo reads on") {
    File filled = file;
    filled.insert(filled.end() - 2, std::byte{0xFF});
    CHECK(planner.plan(filled, frame, &index, window));
    CHECK_FALSE(planner.plan(filled, frame, &index, window_of(frame, 0, 99, 0, 99)));
  }
  SUBCASE("points too far apart to be worth a thread") {
    SideIndex sparse;
    REQUIRE(build_side_index(file, {.interval = 600}, sparse));
    CHECK_FALSE(planner.plan(file, frame, &sparse, window));
  }
  SUBCASE("more bytes than MCUs can have") {
    // Six blocks have 2,976 at most; a thread would walk through whatever an index says.
    for (const uint32_t bytes : {2976U, 2977U, 2978U, 9000U}) {
      SideIndex far(1, 3);
      for (size_t i = 0; i < index.size(); ++i) {
        EntryPoint point = index.at(i);
        if (i == 2) point = {index.at(1).byte + bytes, 0, {}};
        // None lands on the zero behind an 0xFF.
        if (i == 2 && file[point.byte] == std::byte{0}) point.byte -= bytes > 2977 ? 0 : 1;
        if (i > 2 && i < SideIndex::group) point.byte = std::max(point.byte, index.at(1).byte);
        REQUIRE(far.add(point));
      }
      INFO(bytes);
      CHECK(planner.plan(file, frame, &far, window) == (bytes <= 2977));
    }
  }
}

TEST_CASE("threads keep to their part of the memory, whatever file and index say") {
  constexpr uint32_t kSeed = 20261123;
  std::mt19937 random(kSeed);
  const int rounds = full() ? 20000 : 1500;
  StretchPlanner planner;
  CoefficientReader reader;
  int ran = 0;
  int good = 0;
  for (int round = 0; round < rounds; ++round) {
    JpegSpec spec;
    spec.width = draw(random, 8, 140);
    spec.height = draw(random, 8, 140);
    spec.h = draw(random, 1, 2);
    spec.v = draw(random, 1, 2);
    spec.grey = draw(random, 0, 4) == 0;
    spec.noise_bits = draw(random, 2, 8);
    spec.seed = random();
    File file = make_jpeg(spec);
    SideIndex index;
    if (!build_side_index(file, {.interval = draw(random, 1, 20)}, index)) continue;
    const auto scan = static_cast<int>(index.at(0).byte);
    for (int i = draw(random, 0, 30); i > 0; --i) {
      file[static_cast<size_t>(draw(random, scan, static_cast<int>(file.size()) - 1))] =
          static_cast<std::byte>(draw(random, 0, 2) == 0 ? 255 : draw(random, 0, 255));
    }
    if (draw(random, 0, 1) == 1) index = changed(index, random, draw(random, 1, 4));
    ImageHeader header;
    if (!read_header(file, {}, header, {}).ok()) continue;
    const int x = draw(random, 0, spec.width - 1);
    const int y = draw(random, 0, spec.height - 1);
    const Box box{x, y, draw(random, 1, spec.width - x), draw(random, 1, spec.height - y)};
    if (!reader.open(file, header, box, 100)) continue;
    const JpegFrame& frame = reader.frame();
    if (!planner.plan(file, frame, &index, reader.window())) continue;
    Arena arena;
    EntropyPart part;
    part.units = static_cast<uint32_t>(planner.stretches().size());
    part.bytes = static_cast<uint32_t>(planner.bytes());
    part.stretches_at = arena.add(part.units * sizeof(CardStretch));
    part.bytes_at = arena.add(part.bytes);
    part.tables_at = arena.add(planner.tables().codes().size() * sizeof(CodeTable));
    part.verdict_at = arena.add(sizeof(uint32_t));
    const uint64_t coefficients_at = arena.add(reader.bytes());
    arena.make();
    uint8_t* const memory = arena.data();
    std::memcpy(memory + part.stretches_at, planner.stretches().data(), part.units * sizeof(CardStretch));
    planner.copy_bytes(reinterpret_cast<std::byte*>(memory + part.bytes_at));
    const auto& codes = planner.tables().codes();
    std::memcpy(memory + part.tables_at, codes.data(), codes.size() * sizeof(CodeTable));
    std::memset(memory + part.verdict_at, 0, sizeof(uint32_t));
    part.mcu_columns = static_cast<uint32_t>(frame.mcu_columns);
    part.turns = static_cast<uint32_t>(planner.tables().turns().size());
    std::copy(planner.tables().turns().begin(), planner.tables().turns().end(), part.turn);
    for (int c = 0; c < frame.components; ++c) {
      const CoefficientReader::Blocks& blocks = reader.blocks(c);
      part.h[c] = frame.component[static_cast<size_t>(c)].h;
      part.v[c] = frame.component[static_cast<size_t>(c)].v;
      part.coefficients[c] = {coefficients_at + blocks.at * sizeof(int16_t),
                              blocks.row_stride * sizeof(int16_t),
                              blocks.first_column,
                              blocks.first_row,
                              blocks.first_column + blocks.columns,
                              blocks.first_row + blocks.rows};
    }
    for (size_t k = 0; k < 64; ++k) part.places[k] = static_cast<uint8_t>(tile_offset(zigzag_order[k]));
    arena.close_gaps();
    for (uint32_t unit = 0; unit < part.units; ++unit) entropy_stretch(memory, part, unit);
    REQUIRE_MESSAGE(arena.gaps_are_whole(), "round " << round);
    ++ran;
    good += *reinterpret_cast<const uint32_t*>(memory + part.verdict_at) == 0 ? 1 : 0;
  }
  std::printf("seed %u: %d files, of which %d good\n", kSeed, ran, good);
  CHECK(ran > rounds / 4);
  CHECK(good > 20);
  CHECK(good < ran / 2);
}
