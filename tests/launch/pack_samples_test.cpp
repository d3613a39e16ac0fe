// What a pack has of a sample: rewritten where that is asked for and a job would take the new file as it takes the old.
#include "launch/pack_samples.h"

#include <doctest/doctest.h>

#include <string>

#include "launch/jpeg_rewrite.h"
#include "tests/decode/jpeg_files.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;
using penstock_test::make_jpeg;

namespace {

PackedSample packed(const TemporaryFolder& folder, const DecodeLimits& limits) {
  DatasetSpec dataset;
  dataset.folder = folder.path("photos");
  const PackInput input(dataset, limits, 0);
  REQUIRE(input.size() == 1);
  return PackMaker(input, {.rewrite = true, .verify = true, .restart_points = false}, limits).make(0);
}

}  // namespace

TEST_CASE("a rewritten picture is within the limits that the file was within") {
  // Photos' baseline files are larger than their progressive ones; of so small a picture the scans' headers weigh more,
  // so it is noise of few bits that does it here.
  const std::vector<std::byte> file =
      make_jpeg({.width = 400, .height = 300, .progressive = true, .quality = 50, .noise_bits = 4});
  std::vector<std::byte> fresh;
  REQUIRE(rewrite_jpeg(file, fresh).empty());
  REQUIRE(fresh.size() > file.size());
  const TemporaryFolder folder;
  folder.write("photos/cats/1.jpg", std::string(reinterpret_cast<const char*>(file.data()), file.size()));
  DecodeLimits limits;
  limits.max_encoded_bytes = std::ssize(fresh);
  PackedSample sample = packed(folder, limits);
  CHECK(sample.notes.rewritten);
  CHECK(sample.record == fresh);
  --limits.max_encoded_bytes;
  sample = packed(folder, limits);
  CHECK(!sample.notes.rewritten);
  CHECK(sample.notes.bad.empty());
  CHECK(sample.record == file);
}
