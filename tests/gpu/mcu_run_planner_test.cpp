// Which runs of MCUs a GPU gets, and that its threads keep to them, whatever file and index say.
#include "runtime/gpu/mcu_run_planner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "runtime/gpu/entropy_kernel.h"
#include "tests/decode/jpeg_files.h"
#include "tests/gpu/entropy_arena.h"

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

// By one thread a run of MCUs.
bool decode(const McuRunPlanner& planner, EntropyArena& arena) {
  const std::vector<GpuMcuRun>& mcu_runs = planner.mcu_runs();
  arena.part.units = static_cast<uint32_t>(mcu_runs.size());
  arena.part.mcu_runs_at = arena.memory.add(mcu_runs.size() * sizeof(GpuMcuRun));
  arena.fill(planner);
  std::memcpy(arena.memory.data() + arena.part.mcu_runs_at, mcu_runs.data(), mcu_runs.size() * sizeof(GpuMcuRun));
  arena.memory.close_gaps();
  for (uint32_t unit = 0; unit < arena.part.units; ++unit) entropy_mcu_run(arena.memory.data(), arena.part, unit);
  return arena.good();
}

std::vector<size_t> markers_of(const File& file, size_t scan) {
  std::vector<size_t> markers;
  for (size_t at = 0; find_marker(file, scan, at); scan = at + 2) markers.push_back(at);
  return markers;
}

// What restart markers may suffer: file and scan stay long enough to have one.
void damage_restarts(File& file, size_t scan, std::mt19937& random) {
  const std::vector<size_t> markers = markers_of(file, scan);
  const auto any = [&] {
    return static_cast<size_t>(draw(random, static_cast<int>(scan), static_cast<int>(file.size()) - 1));
  };
  const size_t marker = markers[static_cast<size_t>(draw(random, 0, static_cast<int>(markers.size()) - 1))];
  const auto place = file.begin() + static_cast<ptrdiff_t>(marker);
  switch (draw(random, 0, 8)) {
    case 0:  // in wrong order, or none
      file[marker + 1] = static_cast<std::byte>(draw(random, 0xC0, 0xFF));
      return;
    case 1:  // missing
      file.erase(place, place + 2);
      return;
    case 2: {  // twice
      const std::byte again[] = {file[marker], file[marker + 1]};
      file.insert(place, std::begin(again), std::end(again));
      return;
    }
    case 3:  // bytes or fill bytes before it
      file.insert(place, static_cast<size_t>(draw(random, 1, 3)), static_cast<std::byte>(draw(random, 0, 1) * 255));
      return;
    case 4: {  // an interval missing
      const size_t next = markers[static_cast<size_t>(draw(random, 0, static_cast<int>(markers.size()) - 1))];
      file.erase(file.begin() + static_cast<ptrdiff_t>(std::min(marker, next)),
                 file.begin() + static_cast<ptrdiff_t>(std::max(marker, next)));
      return;
    }
    case 5:  // cut off
      file.resize(any());
      return;
    case 6:  // the byte before it
      file[marker - 1] = static_cast<std::byte>(draw(random, 0, 255));
      return;
    default:
      for (int i = draw(random, 1, 4); i > 0; --i) {
        file[any()] = static_cast<std::byte>(draw(random, 0, 2) == 0 ? 255 : draw(random, 0, 255));
      }
  }
}

}  // namespace

TEST_CASE("bytes and restart points of exactly the runs of MCUs that the window needs") {
  const File file = make_jpeg({.width = 320, .height = 160});
  JpegFrame frame;
  SideIndex index;
  REQUIRE(read_baseline_frame(file, frame));
  REQUIRE(build_side_index(file, {.interval = 4}, index));
  McuRunPlanner planner;
  REQUIRE(planner.plan(file, frame, &index, window_of(frame, 5, 7, 2, 5)));
  // MCUs 45 and 46, 65 and 66, 85 and 86: the points before them, and the last one to its end.
  REQUIRE(planner.mcu_runs().size() == 3);
  std::vector<std::byte> copied(planner.bytes());
  planner.copy_bytes(copied.data());
  for (size_t i = 0; i < 3; ++i) {
    const GpuMcuRun& mcu_run = planner.mcu_runs()[i];
    CHECK(mcu_run.first_mcu == 44 + 20 * i);
    CHECK(mcu_run.mcus == (i < 2 ? 3 : 4));
    CHECK((mcu_run.end == GpuMcuRun::End::point) == (i == 2));
    const RestartPoint from = index.at(mcu_run.first_mcu / 4);
    const RestartPoint to = index.at(mcu_run.first_mcu / 4 + 1);
    CHECK(mcu_run.bit == from.bit);
    CHECK(mcu_run.end_bit == to.bit);
    CHECK(mcu_run.end_byte - mcu_run.byte == to.byte - from.byte);
    CHECK(std::memcmp(copied.data() + mcu_run.byte, file.data() + from.byte, to.byte - from.byte + 2) == 0);
  }
  // All of it is one piece, from the first point to the marker.
  REQUIRE(planner.plan(file, frame, &index, window_of(frame, 0, 99, 0, 99)));
  CHECK(planner.bytes() == file.size() - frame.scan_begin);
  CHECK(planner.mcu_runs().back().end == GpuMcuRun::End::marker);
}

TEST_CASE("what is not for a GPU's threads") {
  const File file = make_jpeg({.width = 800, .height = 160, .noise_bits = 8});
  JpegFrame frame;
  SideIndex index;
  REQUIRE(read_baseline_frame(file, frame));
  REQUIRE(build_side_index(file, {.interval = 1}, index));
  McuRunPlanner planner;
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
        RestartPoint point = index.at(i);
        if (i == 2) point = {index.at(1).byte + bytes, 0, {}};
        // None lands on the zero behind an 0xFF.
        if (i == 2 && file[point.byte] == std::byte{0}) point.byte -= bytes > 2977 ? 0 : 1;
        if (i > 2 && i < SideIndex::kGroup) point.byte = std::max(point.byte, index.at(1).byte);
        REQUIRE(far.add(point));
      }
      INFO(bytes);
      CHECK(planner.plan(file, frame, &far, window) == (bytes <= 2977));
    }
  }
}

TEST_CASE("restart intervals down to the window's last row, some to a run of MCUs where they are short") {
  // Ten MCUs of six blocks in a row.
  const File file = make_jpeg({.width = 160, .height = 160, .restart = 4});
  JpegFrame frame;
  REQUIRE(read_baseline_frame(file, frame));
  const std::vector<size_t> markers = markers_of(file, frame.scan_begin);
  REQUIRE(markers.size() == 25);
  McuRunPlanner planner;
  REQUIRE(planner.plan_at_restarts(file, frame, window_of(frame, 3, 4, 1, 3)));
  // 30 MCUs: seven intervals and a half, two of them 48 blocks.
  REQUIRE(planner.mcu_runs().size() == 4);
  CHECK(planner.bytes() == markers[7] + 2 - frame.scan_begin);
  File copied(planner.bytes());
  planner.copy_bytes(copied.data());
  CHECK(std::memcmp(copied.data(), file.data() + frame.scan_begin, copied.size()) == 0);
  for (size_t i = 0; i < 4; ++i) {
    const GpuMcuRun& mcu_run = planner.mcu_runs()[i];
    CHECK(mcu_run.byte == (i == 0 ? 0 : markers[2 * i - 1] + 2 - frame.scan_begin));
    CHECK(mcu_run.end_byte == markers[2 * i + 1] - frame.scan_begin);
    CHECK(mcu_run.first_mcu == 8 * i);
    CHECK(mcu_run.mcus == (i < 3 ? 8 : 6));
    CHECK(mcu_run.end == (i < 3 ? GpuMcuRun::End::marker : GpuMcuRun::End::no_warnings));
  }
}

TEST_CASE("what of restart markers is left to the CPU") {
  const File file = make_jpeg({.width = 160, .height = 160, .restart = 10});
  JpegFrame frame;
  REQUIRE(read_baseline_frame(file, frame));
  const std::vector<size_t> markers = markers_of(file, frame.scan_begin);
  McuRunPlanner planner;
  const auto planned = [&](const File& changed, int rows) {
    return planner.plan_at_restarts(changed, frame, window_of(frame, 0, 99, 0, rows));
  };
  CHECK(planned(file, 10));
  CHECK(planned(file, 2));
  CHECK_FALSE(planned(file, 1));  // without a marker: scan_planner.h
  File changed = file;
  SUBCASE("one in wrong order, unless the window ends before") {
    changed[markers[4] + 1] = std::byte{0xD5};
    CHECK(planned(changed, 5));
    CHECK_FALSE(planned(changed, 6));
  }
  SUBCASE("one missing") {
    const auto place = changed.begin() + static_cast<ptrdiff_t>(markers[4]);
    changed.erase(place, place + 2);
    CHECK_FALSE(planned(changed, 6));
  }
  SUBCASE("a fill byte before one") {
    changed.insert(changed.begin() + static_cast<ptrdiff_t>(markers[4]), std::byte{0xFF});
    CHECK_FALSE(planned(changed, 6));
  }
  SUBCASE("the file's end before the next one") {
    changed.resize(markers[4] - 1);
    CHECK(planned(changed, 4));
    CHECK_FALSE(planned(changed, 5));
  }
  SUBCASE("intervals too long for a thread") {
    const File wide = make_jpeg({.width = 8200, .height = 32, .restart = 513});
    REQUIRE(read_baseline_frame(wide, frame));
    CHECK_FALSE(planned(wide, 2));
    const File less = make_jpeg({.width = 8192, .height = 32, .restart = 512});
    REQUIRE(read_baseline_frame(less, frame));
    CHECK(planned(less, 2));
  }
}

TEST_CASE("threads at restart markers find what decoding in order finds, or say that they have not") {
  constexpr uint32_t kSeed = 20261127;
  std::mt19937 random(kSeed);
  const int rounds = full() ? 40000 : 3000;
  McuRunPlanner planner;
  CoefficientReader reader;
  int whole = 0;
  int strict = 0;
  int counts[2] = {};  // damaged: not good, good
  for (int round = 0; round < rounds; ++round) {
    JpegSpec spec = random_spec(random, 140);
    spec.restart = draw(random, 1, draw(random, 0, 1) == 0 ? 4 : 20);
    File file = make_jpeg(spec);
    JpegFrame frame;
    if (!read_baseline_frame(file, frame)) continue;
    const bool damaged = draw(random, 0, 3) != 0;
    if (damaged) damage_restarts(file, frame.scan_begin, random);
    if (!open_at_any_crop(random, file, spec, reader)) continue;
    INFO("round " << round);
    const bool restarts = spec.restart < frame.mcu_columns * reader.window().end_row;
    if (!planner.plan_at_restarts(file, reader.frame(), reader.window())) {
      REQUIRE((damaged || !restarts));
      continue;
    }
    REQUIRE(restarts);
    EntropyArena arena(planner, reader);
    const bool good = decode(planner, arena);
    REQUIRE(arena.memory.gaps_are_whole());
    REQUIRE((good || damaged));
    REQUIRE((!good || arena.has_coefficients_of(reader)));
    ++(damaged ? counts[good ? 1 : 0] : whole);
    std::vector<int16_t> coefficients(reader.bytes() / sizeof(int16_t));
    if (!good && reader.read(nullptr, coefficients.data())) ++strict;
  }
  std::printf("seed %u: %d whole; %d damaged good, %d not, %d of them where the CPU would go on\n", kSeed, whole,
              counts[1], counts[0], strict);
  CHECK(whole > rounds / 10);
  CHECK(counts[0] > rounds / 20);
  CHECK(counts[1] > rounds / 20);
  CHECK(strict <= counts[0] / 10);
}

TEST_CASE("threads keep to their part of the memory, whatever file and index say") {
  constexpr uint32_t kSeed = 20261123;
  std::mt19937 random(kSeed);
  const int rounds = full() ? 20000 : 1500;
  McuRunPlanner planner;
  CoefficientReader reader;
  int ran = 0;
  int good_files = 0;
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
    if (!open_at_any_crop(random, file, spec, reader)) continue;
    if (!planner.plan(file, reader.frame(), &index, reader.window())) continue;
    EntropyArena arena(planner, reader);
    const bool good = decode(planner, arena);
    REQUIRE_MESSAGE(arena.memory.gaps_are_whole(), "round " << round);
    ++ran;
    good_files += good ? 1 : 0;
  }
  std::printf("seed %u: %d files, of which %d good\n", kSeed, ran, good_files);
  CHECK(ran > rounds / 4);
  CHECK(good_files > 20);
  CHECK(good_files < ran / 2);
}
