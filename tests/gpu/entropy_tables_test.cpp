// Tables of a file for a GPU: whatever was kept of files before it, they are those of this one.
#include "runtime/gpu/entropy_tables.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/decode/jpeg_files.h"

namespace {

using namespace penstock;
using namespace penstock_test;
using File = std::vector<std::byte>;

// Whether each block has the table that its component's specification makes.
void check_tables(const EntropyTables& tables, const JpegFrame& frame) {
  std::vector<uint64_t> number;
  for (uint64_t i = 0; i < tables.codes().size(); ++i) number.push_back(i);
  McuBlock mcu_blocks[6];
  tables.write_mcu_blocks(number, mcu_blocks);
  size_t at = 0;
  for (size_t c = 0; c < static_cast<size_t>(frame.components); ++c) {
    const JpegComponent& component = frame.component[c];
    HuffmanCodes dc;
    HuffmanCodes ac;
    REQUIRE(dc.build(frame.dc[static_cast<size_t>(component.dc_table)], HuffmanCodes::Kind::dc));
    REQUIRE(ac.build(frame.ac[static_cast<size_t>(component.ac_table)], HuffmanCodes::Kind::ac));
    for (int block = 0; block < component.h * component.v; ++block, ++at) {
      REQUIRE(mcu_blocks[at].component == c);
      CHECK(std::memcmp(&dc.table(), &tables.codes()[mcu_blocks[at].dc_at]->codes.table(), sizeof(CodeTable)) == 0);
      CHECK(std::memcmp(&ac.table(), &tables.codes()[mcu_blocks[at].ac_at]->codes.table(), sizeof(CodeTable)) == 0);
    }
  }
  CHECK(tables.blocks() == at);
}

}  // namespace

TEST_CASE("every file has its own tables, however many came before and whichever come again") {
  constexpr uint32_t kSeed = 20261128;
  std::mt19937 random(kSeed);
  INFO("seed " << kSeed);
  EntropyTables tables;
  std::vector<File> files;
  for (uint32_t i = 0; i < 60; ++i) {
    files.push_back(make_jpeg({.width = 64,
                               .height = 64,
                               .quality = draw(random, 20, 95),
                               .grey = i % 7 == 0,
                               .optimize = i % 3 != 0,
                               .seed = i,
                               .noise_bits = draw(random, 2, 8)}));
  }
  for (int round = 0; round < 300; ++round) {
    const File& file = files[static_cast<size_t>(draw(random, 0, 59))];
    JpegFrame frame;
    REQUIRE(read_baseline_frame(file, frame));
    REQUIRE(tables.make(frame));
    check_tables(tables, frame);
  }
}

TEST_CASE("equal tables are one, with one key") {
  EntropyTables tables;
  EntropyTables of_another_thread;
  JpegFrame frame;
  const File file = make_jpeg({});
  REQUIRE(read_baseline_frame(file, frame));
  REQUIRE(tables.make(frame));
  REQUIRE(tables.codes().size() == 4);  // chroma shares its own
  const std::vector<const EntropyTables::Codes*> before(tables.codes().begin(), tables.codes().end());
  const File other = make_jpeg({.quality = 50, .seed = 3});
  REQUIRE(read_baseline_frame(other, frame));
  REQUIRE(tables.make(frame));
  REQUIRE(of_another_thread.make(frame));
  for (size_t i = 0; i < 4; ++i) {
    CHECK(tables.codes()[i] == before[i]);
    CHECK(tables.codes()[i]->key == of_another_thread.codes()[i]->key);
  }
}

TEST_CASE("a table that libjpeg-turbo refuses is refused again") {
  File file = make_jpeg({});
  JpegFrame frame;
  REQUIRE(read_baseline_frame(file, frame));
  // 16 counts of codes; the first value of a DC table is a number of bits, and 16 are too many.
  const auto value = reinterpret_cast<const std::byte*>(frame.dc[0].bytes + 16) - file.data();
  file[static_cast<size_t>(value)] = std::byte{16};
  EntropyTables tables;
  for (int i = 0; i < 2; ++i) CHECK_FALSE(tables.make(frame));
}
