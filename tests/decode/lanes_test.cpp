// Vector lanes against the plain code: one lookup at a time, run of MCUs by run of MCUs, and row by row of whole files.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/decode/jpeg/coefficient_rows.h"
#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/entropy.h"
#include "runtime/decode/jpeg/entropy_lanes.h"
#include "runtime/decode/jpeg/jpeg_frame.h"
#include "runtime/decode/jpeg/lane_step.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/decode/jpeg/speculative_rows.h"
#include "runtime/decode/jpeg/stuffing.h"
#include "runtime/decode/jpeg/zigzag.h"
#include "tests/decode/jpeg_files.h"

namespace {

using namespace penstock;
using penstock_test::draw;
using penstock_test::full;
using penstock_test::JpegSpec;
using penstock_test::make_jpeg;
using penstock_test::random_spec;
using File = std::vector<std::byte>;

// A scan without its stuffing.
std::vector<uint8_t> plain_scan(const File& file, const JpegFrame& frame) {
  std::vector<uint8_t> bytes;
  for (size_t i = frame.scan_begin; i < file.size(); ++i) {
    const auto byte = static_cast<uint8_t>(file[i]);
    if (byte == 0xFF && file[++i] != std::byte{0}) break;
    bytes.push_back(byte);
  }
  return bytes;
}

TEST_CASE("a step takes one or two coefficients, as the codes say them one by one") {
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < (full() ? 400 : 20); ++i) {
    const File file = make_jpeg(random_spec(random, 60));
    JpegFrame frame;
    LaneTables tables;
    LaneLayout layout;
    if (!read_baseline_frame(file, frame)) continue;
    REQUIRE(tables.lay_out(frame, layout));
    for (int n = 0; n < 4000; ++n) {
      std::array<uint8_t, 32> bytes{};
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      const auto b = static_cast<uint32_t>(random() % layout.blocks);
      LanePlace place{static_cast<uint32_t>(random() % 8), 128, 2 * static_cast<uint32_t>(random() % 64), 4 * b};
      std::array<int16_t, 64 * 4> got{};
      const LanePlace before = place;
      const bool fine = lane_step(tables, layout, bytes.data(), got.data(), place);
      // The same by single codes, up to where the step ended.
      std::array<int16_t, 64 * 4> want{};
      LanePlace slow = before;
      bool slow_fine = true;
      int symbols = 0;
      while (slow_fine && slow.block == before.block && slow.bit < place.bit) {
        const uint64_t bits = lane_bits(bytes.data(), slow.bit);
        const bool dc = slow.next == 0;
        const HuffmanCodes& codes = tables.codes((dc ? layout.dc_tables : layout.ac_tables) >> before.mcu_block & 15);
        int symbol = 0;
        const int length = codes.symbol(bits, symbol);
        slow_fine = length > 0;
        if (!slow_fine) break;
        const int size = dc ? symbol : symbol & 15;
        const int run = dc ? 0 : symbol >> 4;
        ++symbols;
        slow.bit += static_cast<uint32_t>(length + size);
        if (!dc && size == 0 && run != 15) {
          slow.block += 128;
          break;
        }
        slow.next += 2 * static_cast<uint32_t>(run + 1);
        if (size > 0) {
          const auto raw = static_cast<unsigned>(bits << length >> (64 - size));
          want[64 + slow.next / 2 - 1] = static_cast<int16_t>(extend_value(raw, size));
        }
        if (slow.next >= 128) slow.block += 128;
        slow_fine = slow.next <= 128;
      }
      if (place.bit == before.bit) {
        CHECK_FALSE(fine);
        continue;
      }
      CHECK(fine == slow_fine);
      CHECK(symbols >= 1);
      CHECK(symbols <= 2);
      if (!fine) continue;
      CHECK(place.bit == slow.bit);
      CHECK(place.block == slow.block);
      CHECK(got == want);
    }
  }
}

// Runs of MCUs cut anywhere from a scan, right or wrong: lanes end where single steps lead, and store what they store.
struct McuRuns final : LaneFeeder {
  std::vector<LaneUnit> units;
  std::vector<LaneEnd> ends;
  std::array<size_t, kMostLanes> of{};
  size_t given = 0;

  bool feed(size_t lane, const LaneEnd* end, LaneUnit& unit) override {
    if (end != nullptr) ends[of[lane]] = *end;
    if (given == units.size()) return false;
    of[lane] = given;
    unit = units[given++];
    return true;
  }
};

// CPUs without AVX2 have none.
const auto kSkip = doctest::skip(lane_shape().count == 0);

TEST_CASE("lanes do what single steps do, also on garbage" * kSkip) {
  const LaneShape shape = lane_shape();
  MESSAGE(shape.count, " lanes, ", std::string(shape.vectors));
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  int64_t all = 0;
  int64_t past = 0;
  int64_t failed = 0;
  for (int i = 0; i < (full() ? 2000 : 60); ++i) {
    const File file = make_jpeg(random_spec(random, 200));
    JpegFrame frame;
    LaneTables tables;
    LaneLayout layout;
    if (!read_baseline_frame(file, frame)) continue;
    REQUIRE(tables.lay_out(frame, layout));
    std::vector<uint8_t> bytes = plain_scan(file, frame);
    if (random() % 4 == 0) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    }
    const auto size = static_cast<uint32_t>(bytes.size());
    if (size < 8) continue;
    for (size_t n = 0; n < kLanePadding; ++n) bytes.push_back(static_cast<uint8_t>(random()));
    McuRuns mcu_runs;
    uint32_t out = kLaneScratchBytes;
    const int count = draw(random, 1, 50);
    for (int n = 0; n < count; ++n) {
      LaneUnit unit;
      unit.bit = static_cast<uint32_t>(random() % (8 * size - 7));
      unit.end_bit = unit.bit + static_cast<uint32_t>(random() % (8 * size - unit.bit));
      unit.blocks = static_cast<uint32_t>(draw(random, 1, 40));
      unit.out_byte = out;
      out += (unit.blocks + 1) * 128;
      mcu_runs.units.push_back(unit);
    }
    mcu_runs.ends.resize(mcu_runs.units.size());
    std::vector<int16_t> coefficients(out / 2);
    std::vector<int16_t> by_steps(out / 2 + 64 * 64);
    decode_lanes(tables, layout, bytes.data(), coefficients.data(), mcu_runs);
    for (size_t n = 0; n < mcu_runs.units.size(); ++n) {
      const LaneUnit& unit = mcu_runs.units[n];
      const LaneEnd& end = mcu_runs.ends[n];
      LanePlace place{unit.bit, unit.out_byte, 0, 0};
      const uint32_t last = unit.out_byte + unit.blocks * 128;
      bool fine = true;
      while (fine && place.block < last && place.bit <= unit.end_bit && place.bit < end.place.bit) {
        fine = lane_step(tables, layout, bytes.data(), by_steps.data(), place);
      }
      if (end.why == LaneEnd::Why::failed) {
        // Lanes notice up to five lookups later.
        for (int more = 0; more < 5 && fine && place.block < last; ++more)
          fine = lane_step(tables, layout, bytes.data(), by_steps.data(), place);
        CHECK_FALSE(fine);
        ++failed;
        continue;
      }
      while (place.bit < end.place.bit && place.block < last)
        REQUIRE(lane_step(tables, layout, bytes.data(), by_steps.data(), place));
      CHECK(place.bit == end.place.bit);
      CHECK(place.block == end.place.block);
      CHECK(place.next == end.place.next);
      CHECK(place.mcu_block == end.place.mcu_block);
      CHECK((end.why == LaneEnd::Why::past_end) == (place.bit > unit.end_bit));
      CHECK(std::equal(coefficients.begin() + unit.out_byte / 2, coefficients.begin() + last / 2,
                       by_steps.begin() + unit.out_byte / 2));
      ++(end.why == LaneEnd::Why::past_end ? past : all);
    }
  }
  MESSAGE(all, " runs of MCUs to their end, ", past, " past it, ", failed, " failed");
  CHECK(all > 0);
  CHECK(past > 0);
  CHECK(failed > 0);
}

// Blocks of 31 bits, 27 of them the DC code's: the third lookup of a fetch finds too few bits for it, and its block has
// just begun.
TEST_CASE("lanes wait for the bits of a long code without losing their place" * kSkip) {
  std::mt19937 random(11);
  std::vector<uint8_t> dc_spec(17), ac_spec(17);
  dc_spec[15] = 1;   // one code of 16 zeros
  dc_spec[16] = 11;  // with 11 bits behind it
  ac_spec[3] = 1;    // one of four zeros: the block's end
  JpegFrame frame;
  frame.components = 1;
  frame.component[0].h = frame.component[0].v = 1;
  frame.dc[0] = {dc_spec.data(), 1};
  frame.ac[0] = {ac_spec.data(), 1};
  LaneTables tables;
  LaneLayout layout;
  REQUIRE(tables.lay_out(frame, layout));
  constexpr uint32_t blocks = 200;
  constexpr uint32_t block_bits = 16 + 11 + 4;
  std::vector<uint8_t> bytes(blocks * block_bits / 8 + 1 + kLanePadding);
  for (uint32_t block = 0; block < blocks; ++block) {
    for (uint32_t bit = block * block_bits + 16; bit < block * block_bits + 27; ++bit) {
      if (random() % 2 == 0) bytes[bit / 8] |= static_cast<uint8_t>(128 >> bit % 8);
    }
  }
  McuRuns mcu_runs;
  for (uint32_t n = 0; n < 2 * kMostLanes; ++n) {
    const uint32_t out = static_cast<uint32_t>(kLaneScratchBytes) + n * (blocks + 1) * 128;
    mcu_runs.units.push_back({n * block_bits, blocks * block_bits, blocks - n, out});
  }
  mcu_runs.ends.resize(mcu_runs.units.size());
  std::vector<int16_t> coefficients((kLaneScratchBytes + mcu_runs.units.size() * (blocks + 1) * 128) / 2);
  std::vector<int16_t> by_steps = coefficients;
  decode_lanes(tables, layout, bytes.data(), coefficients.data(), mcu_runs);
  for (size_t n = 0; n < mcu_runs.units.size(); ++n) {
    const LaneUnit& unit = mcu_runs.units[n];
    LanePlace place{unit.bit, unit.out_byte, 0, 0};
    while (place.block < unit.out_byte + unit.blocks * 128)
      REQUIRE(lane_step(tables, layout, bytes.data(), by_steps.data(), place));
    CHECK(mcu_runs.ends[n].fine());
    CHECK(mcu_runs.ends[n].place.bit == place.bit);
  }
  CHECK(coefficients == by_steps);
}

TEST_CASE("stuffing is taken out in vectors as byte by byte, up to a marker") {
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> in(draw(random, 1, 600));
    const int stuffed = draw(random, 0, 8);
    for (size_t n = 0; n < in.size(); ++n) {
      if (n > 0 && in[n - 1] == 0xFF && random() % 400 != 0) continue;
      in[n] = static_cast<int>(random() % 16) < stuffed ? 0xFF : static_cast<uint8_t>(random());
    }
    const uint8_t* const begin = in.data();
    const uint8_t* const end = begin + draw(random, 0, static_cast<int>(in.size()));
    const size_t room = random() % 700;
    std::vector<uint8_t> want(room), got(room);
    const auto rest = [](uint8_t*) {};
    const Unstuffed slow = unstuff(begin, end, begin + in.size(), want.data(), want.data() + room, rest);
    Unstuffed fast = unstuff_in_vectors(begin, end, got.data(), got.data() + room);
    fast = unstuff(fast.in, end, begin + in.size(), fast.out, got.data() + room, rest);
    const auto size = static_cast<size_t>(slow.out - want.data());
    REQUIRE(fast.in == slow.in);
    REQUIRE(static_cast<size_t>(fast.out - got.data()) == size);
    REQUIRE(std::equal(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(size), got.begin()));
  }
}

TEST_CASE("zigzag blocks become tiles in natural order" * kSkip) {
  std::mt19937 random(3);
  std::vector<int16_t> blocks(8 * 64);
  for (int16_t& value : blocks) value = static_cast<int16_t>(random());
  std::vector<const int16_t*> places;
  for (size_t i = 0; i < 8; ++i) places.push_back(blocks.data() + 64 * i);
  std::vector<int16_t> tiles(2 * kTileCoefficients);
  zigzag_blocks_to_tiles(places.data(), 2, tiles.data());
  for (size_t i = 0; i < 8; ++i) {
    for (size_t k = 0; k < 64; ++k)
      REQUIRE(tiles[tile_block_begin(i) + tile_offset(kZigzagOrder[k])] == blocks[64 * i + k]);
  }
}

// The coefficients of a window's rows, or nothing where they are not ours.
struct Rows {
  bool supported = false;
  bool by_lanes = false;
  std::vector<int16_t> coefficients;
};

Rows read_rows(CoefficientRows& rows, const File& file, const JpegFrame& frame, const Box& box, bool lanes,
               const SideIndex* index = nullptr) {
  const McuWindow window = mcu_window(frame, box);
  const size_t size = window.most_coefficients(frame);
  Rows result;
  result.supported = rows.begin(file, frame, index, window, lanes);
  for (int row = window.first_row; result.supported && row < window.end_row; ++row) {
    const size_t at = result.coefficients.size();
    result.coefficients.resize(at + size, int16_t{77});
    result.supported = rows.read_row(row, window.target(frame, row, result.coefficients.data() + at));
  }
  result.by_lanes = lanes && rows.without_lanes_may_help();
  result.supported = result.supported && rows.finish();
  return result;
}

Box random_box(std::mt19937& random, const JpegFrame& frame) {
  const bool narrow = random() % 3 == 0;
  const int w = draw(random, 1, narrow ? std::min(frame.width, 20) : frame.width);
  const int h = draw(random, 1, frame.height);
  return {draw(random, 0, frame.width - w), draw(random, 0, frame.height - h), w, h};
}

// A file whose scan is long enough for lanes.
JpegSpec large_spec(std::mt19937& random) {
  JpegSpec spec = random_spec(random, 8);
  spec.width = draw(random, 100, 900);
  spec.height = draw(random, 100, 700);
  spec.quality = draw(random, 40, 98);
  spec.noise_bits = draw(random, 4, 8);
  spec.restart = 0;
  return spec;
}

TEST_CASE("without an index, lanes read what is read from the start" * kSkip) {
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  CoefficientRows rows;
  int64_t crops = 0;
  int64_t by_lanes = 0;
  int64_t refused = 0;
  for (int i = 0; i < (full() ? 1500 : 40); ++i) {
    File file = make_jpeg(large_spec(random));
    const bool damaged = i % 4 == 3;
    JpegFrame frame;
    REQUIRE(read_baseline_frame(file, frame));
    if (damaged) {
      for (int n = draw(random, 1, 6); n > 0; --n) {
        const size_t at = frame.scan_begin + random() % (file.size() - frame.scan_begin);
        file[at] = static_cast<std::byte>(random());
      }
      if (random() % 3 == 0) file.resize(file.size() - random() % (file.size() - frame.scan_begin));
    }
    for (int c = 0; c < 4; ++c) {
      const Box box = random_box(random, frame);
      const Rows want = read_rows(rows, file, frame, box, false);
      const Rows got = read_rows(rows, file, frame, box, true);
      ++crops;
      by_lanes += got.by_lanes && got.supported ? 1 : 0;
      refused += !damaged && want.supported && !got.supported ? 1 : 0;
      // Lanes may be unsure more often; what they take is what reading from the start takes.
      if (got.supported) {
        REQUIRE(want.supported);
        REQUIRE(got.coefficients == want.coefficients);
      }
    }
  }
  MESSAGE(crops, " crops, ", by_lanes, " by lanes, ", refused, " of sound files only without");
  CHECK(by_lanes > crops / 3);
  CHECK(refused < crops / 20);
}

// Rows longer than a band, and images of many bands.
TEST_CASE("large and wide photos stay with the lanes" * kSkip) {
  std::mt19937 random(5);
  CoefficientRows rows;
  for (const auto& size :
       {std::array{8000, 300, 90}, std::array{5000, 2000, 75}, std::array{300, 6000, 95}, std::array{16000, 64, 98}}) {
    const int width = size[0], height = size[1];
    const File file = make_jpeg({.width = width, .height = height, .quality = size[2], .noise_bits = 6});
    JpegFrame frame;
    REQUIRE(read_baseline_frame(file, frame));
    for (int n = 0; n < 3; ++n) {
      const Box box = n == 0 ? Box{0, 0, width, height} : random_box(random, frame);
      const Rows want = read_rows(rows, file, frame, box, false);
      const Rows got = read_rows(rows, file, frame, box, true);
      INFO(width, " x ", height, ", box ", box.x, " ", box.y, " ", box.width, " ", box.height);
      CHECK(got.supported);
      CHECK(got.by_lanes);
      REQUIRE(want.supported);
      REQUIRE(got.coefficients == want.coefficients);
    }
  }
}

TEST_CASE("with an index, lanes read what single decoding from its points reads; and refuse with it") {
  const unsigned seed = std::random_device{}();
  INFO("seed ", seed);
  std::mt19937 random(seed);
  CoefficientRows rows;
  int64_t taken = 0;
  int64_t refused = 0;
  for (int i = 0; i < (full() ? 1500 : 60); ++i) {
    const File file = make_jpeg(i % 2 == 0 ? large_spec(random) : random_spec(random, 200));
    JpegFrame frame;
    SideIndex index;
    if (!read_baseline_frame(file, frame)) continue;
    if (!build_side_index(file, {.interval = draw(random, 1, i % 5 == 0 ? 3000 : 30)}, index)) continue;
    // Every other index has been tampered with.
    const bool hostile = i % 4 > 1;
    if (hostile) {
      std::string text = index.serialise();
      for (int n = draw(random, 1, 8); n > 0; --n) text[8 + random() % (text.size() - 8)] = static_cast<char>(random());
      REQUIRE(SideIndex::read(std::as_bytes(std::span(text)), index));
    }
    for (int c = 0; c < 4; ++c) {
      const Box box = random_box(random, frame);
      const Rows want = read_rows(rows, file, frame, box, false, &index);
      const Rows got = read_rows(rows, file, frame, box, true, &index);
      if (!hostile) REQUIRE(want.supported);
      // A band reads its rows' runs of MCUs together, so lanes may look at a wrong point that the other way passes by.
      if (!hostile || got.supported) REQUIRE(got.supported == want.supported);
      if (got.supported) REQUIRE(got.coefficients == want.coefficients);
      ++(got.supported ? taken : refused);
    }
  }
  MESSAGE(taken, " taken, ", refused, " refused");
  CHECK(taken > 0);
  CHECK(refused > 0);
}

TEST_CASE("an index of another picture of the same size is found out") {
  std::mt19937 random(9);
  CoefficientRows rows;
  int fits = 0;
  int does_not = 0;
  for (int i = 0; i < 40; ++i) {
    JpegSpec spec = large_spec(random);
    const File file = make_jpeg(spec);
    ++spec.seed;
    const File other = make_jpeg(spec);
    JpegFrame frame;
    SideIndex index;
    REQUIRE(read_baseline_frame(file, frame));
    if (!build_side_index(other, {.interval = draw(random, 2, 60)}, index)) continue;
    for (const Box& box : {Box{frame.width - 8, frame.height - 8, 8, 8}, random_box(random, frame)}) {
      const Rows without = read_rows(rows, file, frame, box, false);
      for (const bool lanes : {false, true}) {
        const Rows got = read_rows(rows, file, frame, box, lanes, &index);
        // One that cannot be the file's is not looked at.
        CHECK(got.supported == !index.fits(frame));
        if (got.supported) CHECK(got.coefficients == without.coefficients);
      }
      ++(index.fits(frame) ? fits : does_not);
    }
  }
  CHECK(fits > 0);
  CHECK(does_not > 0);
}

}  // namespace
