#include "runtime/report/npy.h"

#include <doctest/doctest.h>

#include <numeric>

#include "runtime/base/error.h"
#include "tests/support/read_npy.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

TEST_CASE("what is written can be read back, for every type and rank") {
  TemporaryFolder folder;
  const std::string path = folder.path("a.npy");
  std::vector<std::byte> data(8 * 24);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  const std::vector<std::pair<NpyType, std::string>> types = {
      {NpyType::boolean, "|b1"}, {NpyType::uint8, "|u1"},    {NpyType::int32, "<i4"},   {NpyType::int64, "<i8"},
      {NpyType::float16, "<f2"}, {NpyType::bfloat16, "<u2"}, {NpyType::float32, "<f4"}, {NpyType::float64, "<f8"}};
  for (const auto& entry : types) {
    const NpyType type = entry.first;
    const std::string descriptor = entry.second;  // CAPTURE cannot hold a structured binding
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {0}, {24}, {4, 6}, {2, 3, 2, 2}, {1, 1, 1, 1, 24}}) {
      CAPTURE(descriptor);
      write_npy(path, type, shape, data.data());
      const NpyArray array = read_npy(path);
      CHECK(array.descriptor == descriptor);
      CHECK(array.shape == shape);
      size_t bytes = static_cast<size_t>(descriptor.back() - '0');
      for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
      CHECK(array.data == std::vector<std::byte>(data.begin(), data.begin() + static_cast<ptrdiff_t>(bytes)));
    }
  }
}

TEST_CASE("a channels-last view is written in the order of its axes") {
  TemporaryFolder folder;
  // 2 images of 3 channels, 2 rows, 4 columns, stored with the channels last; element = 1000 n + 100 c + 10 y + x.
  std::vector<int64_t> stored(2 * 3 * 2 * 4);
  TensorView view{stored.data(), DType::int64, {2, 3, 2, 4}, {24, 1, 12, 3}};
  std::vector<int64_t> expected;
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t y = 0; y < 2; ++y) {
        for (int64_t x = 0; x < 4; ++x) {
          stored[static_cast<size_t>(n * 24 + c + y * 12 + x * 3)] = 1000 * n + 100 * c + 10 * y + x;
          expected.push_back(1000 * n + 100 * c + 10 * y + x);
        }
      }
    }
  }
  write_npy(folder.path("a.npy"), view);
  const NpyArray array = read_npy(folder.path("a.npy"));
  CHECK(array.shape == view.shape);
  CHECK(array.as<int64_t>() == expected);
}

TEST_CASE("a contiguous view is written as it is") {
  TemporaryFolder folder;
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), -3.5f);
  write_npy(folder.path("a.npy"), TensorView{values.data(), DType::float32, {3, 1, 4}, {4, 77, 1}});
  CHECK(read_npy(folder.path("a.npy")).as<float>() == values);
  CHECK_THROWS_AS(write_npy(folder.path("a.npy"), TensorView{values.data(), DType::float32, {3, 4}, {4}}), Error);
}

TEST_CASE("errors name the path") {
  TemporaryFolder folder;
  const std::string path = folder.path("no/such/folder/a.npy");
  const float value = 1;
  try {
    write_npy(path, NpyType::float32, {1}, &value);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(std::string(error.what()).find(path) != std::string::npos);
  }
}
