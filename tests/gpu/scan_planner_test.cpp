// What a GPU gets of a scan without an index; and that its threads, in whatever order they come, find what decoding in
// order finds, and keep to their part of the memory.
#include "runtime/gpu/scan_planner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "runtime/gpu/sync_kernel.h"
#include "tests/decode/jpeg_files.h"
#include "tests/gpu/entropy_arena.h"

namespace {

using namespace penstock;
using namespace penstock_test;
using File = std::vector<std::byte>;

McuWindow whole(const JpegFrame& frame) {
  McuWindow window;
  window.columns = {0, frame.mcu_columns};
  window.end_row = window.end_luma_row = frame.mcu_rows;
  return window;
}

bool planned(const File& file, ScanPlanner& scan, uint32_t subsequence_bytes = 128) {
  JpegFrame frame;
  REQUIRE(read_baseline_frame(file, frame));
  return scan.plan(file, frame, whole(frame), subsequence_bytes);
}

// The stages of sync_kernel.h for one file, in an arena, units of a launch in any order.
struct Decoding {
  Decoding(const ScanPlanner& planned, const CoefficientReader& reader) : scan(planned), arena(planned, reader) {
    sum.units = (scan.subsequences() + kSubsequencesOfSum - 1) / kSubsequencesOfSum;
    sum.subsequences = write.units = scan.subsequences();
    sum.subsequences_at = write.subsequences_at = arena.memory.add(write.units * sizeof(GpuSubsequence));
    sum.to_at = write.sums_at = arena.memory.add(sum.units * sizeof(GpuSubsequenceSum));
    arena.fill(scan);
    write.subsequence_bytes = scan.subsequence_bytes();
    write.blocks = scan.blocks();
    write.first_row = reader.window().first_row;
    write.first_column = reader.window().columns.first;
    write.end_column = reader.window().columns.end;
    write.entropy = arena.part;
  }

  void run(std::mt19937& random) {
    const EntropyPart& part = arena.part;
    arena.memory.close_gaps();
    SyncPart sync;
    sync.subsequences = write.units;
    sync.subsequence_bytes = write.subsequence_bytes;
    sync.bytes = part.bytes;
    sync.bytes_at = part.bytes_at;
    sync.subsequences_at = write.subsequences_at;
    sync.mcu_blocks = part.mcu_blocks;
    std::copy(std::begin(part.mcu_block), std::end(part.mcu_block), sync.mcu_block);
    for (const ScanPlanner::Round& round : scan.rounds()) {
      sync.units = round.units;
      sync.assumed = round.assumed ? 1 : 0;
      sync.first = round.first;
      sync.step = round.step;
      sync.group = round.group;
      launch(random, sync, sync_subsequences);
    }
    launch(random, sum, sum_subsequences);
    launch(random, write, write_blocks);
  }

  template <class Part>
  void launch(std::mt19937& random, const Part& of, void (*kernel)(uint8_t*, const Part&, uint32_t)) {
    order.resize(of.units);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random);
    for (const uint32_t unit : order) kernel(arena.memory.data(), of, unit);
  }

  const ScanPlanner& scan;
  EntropyArena arena;
  SumPart sum;
  WritePart write;
  std::vector<uint32_t> order;
};

void change(File& file, size_t scan, std::mt19937& random) {
  for (int i = draw(random, 0, 1) * draw(random, 1, 12); i > 0; --i) {
    file[static_cast<size_t>(draw(random, static_cast<int>(scan), static_cast<int>(file.size()) - 1))] =
        static_cast<std::byte>(draw(random, 0, 2) == 0 ? 255 : draw(random, 0, 255));
  }
}

}  // namespace

TEST_CASE("a scan's bytes up to the file's end, or to the marker where something hangs behind it") {
  File file = make_jpeg({.width = 100, .height = 80});
  JpegFrame frame;
  REQUIRE(read_baseline_frame(file, frame));
  ScanPlanner scan;
  REQUIRE(planned(file, scan));
  const size_t bytes = file.size() - frame.scan_begin;
  CHECK(scan.bytes() == bytes);
  CHECK(scan.subsequences() == (bytes + 127) / 128);
  CHECK(scan.blocks() == 7 * 5 * 6);
  File copied(bytes);
  scan.copy_bytes(copied.data());
  CHECK(std::memcmp(copied.data(), file.data() + frame.scan_begin, bytes) == 0);
  file.resize(file.size() + 5000, std::byte{7});
  REQUIRE(planned(file, scan));
  CHECK(scan.bytes() == bytes);
}

TEST_CASE("where a restart interval has all that is wanted, its bytes and the marker behind it") {
  // Seven MCUs in a row, five rows, an interval of two rows.
  const File file = make_jpeg({.width = 100, .height = 80, .restart = 14});
  JpegFrame frame;
  REQUIRE(read_baseline_frame(file, frame));
  ScanPlanner scan;
  McuWindow window = whole(frame);
  for (window.end_row = 5; window.end_row > 2; --window.end_row) CHECK_FALSE(scan.plan(file, frame, window, 128));
  REQUIRE(scan.plan(file, frame, window, 128));
  const std::byte marker[] = {std::byte{0xFF}, std::byte{0xD0}};
  const auto behind = std::search(file.begin() + static_cast<ptrdiff_t>(frame.scan_begin), file.end(),
                                  std::begin(marker), std::end(marker)) +
                      2;
  CHECK(scan.bytes() == static_cast<size_t>(behind - file.begin()) - frame.scan_begin);
  CHECK(scan.blocks() == 7 * 2 * 6);
}

TEST_CASE("what is left to the CPU") {
  ScanPlanner scan;
  CHECK_FALSE(planned(make_jpeg({.restart = 3}), scan));
  File cut = make_jpeg({.width = 100, .height = 80});
  JpegFrame frame;
  REQUIRE(read_baseline_frame(cut, frame));
  cut.resize(frame.scan_begin + 40);  // 210 blocks cannot be in 40 bytes
  CHECK_FALSE(planned(cut, scan));
  frame.progressive = true;
  CHECK_FALSE(scan.plan(cut, frame, whole(frame), 128));
}

TEST_CASE("after the first round neighbours take turns, and none is left out") {
  ScanPlanner scan;
  for (const int side : {9, 17, 60, 200, 400}) {
    REQUIRE(planned(make_jpeg({.width = side, .height = side, .noise_bits = 7}), scan, 16));
    REQUIRE(scan.rounds().front().assumed);
    CHECK(scan.rounds().front().units == scan.subsequences());
    std::vector<int> times(scan.subsequences());
    for (size_t r = 1; r < scan.rounds().size(); ++r) {
      const ScanPlanner::Round& round = scan.rounds()[r];
      CHECK(round.step == 2);
      for (uint32_t unit = 0; unit < round.units; ++unit) {
        const uint32_t begin = (round.first + unit * round.step) * round.group;
        REQUIRE(begin < scan.subsequences());
        for (uint32_t i = begin; i < std::min(begin + round.group, scan.subsequences()); ++i) ++times[i];
      }
    }
    const auto pairs = static_cast<int>(std::size(kSyncRounds));
    CHECK(std::all_of(times.begin(), times.end(), [&](int n) { return n == pairs || scan.subsequences() == 1; }));
  }
}

TEST_CASE("threads find what decoding in order finds, in any order, and keep to their part of the memory") {
  constexpr uint32_t kSeed = 20261125;
  std::mt19937 random(kSeed);
  const int rounds = full() ? 20000 : 1500;
  ScanPlanner scan;
  CoefficientReader reader;
  int good = 0;
  int bad = 0;
  for (int round = 0; round < rounds; ++round) {
    const JpegSpec spec = random_spec(random, draw(random, 0, 2) == 0 ? 140 : 40);
    File file = make_jpeg(spec);
    JpegFrame frame;
    if (!read_baseline_frame(file, frame)) continue;
    change(file, frame.scan_begin, random);
    if (!open_at_any_crop(random, file, spec, reader)) continue;
    const auto subsequence_bytes = static_cast<uint32_t>(draw(random, 1, 200));
    if (!scan.plan(file, reader.frame(), reader.window(), subsequence_bytes)) continue;
    Decoding decoding(scan, reader);
    decoding.run(random);
    INFO("round " << round << ", subsequences of " << subsequence_bytes);
    REQUIRE(decoding.arena.memory.gaps_are_whole());
    const bool is_good = decoding.arena.good();
    ++(is_good ? good : bad);
    REQUIRE((!is_good || decoding.arena.has_coefficients_of(reader)));
  }
  std::printf("seed %u: %d files good, %d not\n", kSeed, good, bad);
  CHECK(good > rounds / 4);
  CHECK(bad > rounds / 10);
}
