// What GpuFinisher must show on every GPU, the one that is this CPU and real ones.
//
//   check_finisher(open_host_gpu(0, bytes));         // in a doctest test case
//   check_exported(open_host_gpu(0, bytes));           // of what the GPU exports
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "runtime/gpu/gpu_finisher.h"

namespace penstock_test {

// Batches of random pixels, one after the other by one finisher, from an image a piece to all in one; what lies around
// the tensor is watched.
inline void check_finisher(const std::shared_ptr<penstock::Gpu>& gpu) {
  using namespace penstock;
  constexpr size_t kGuard = 512;
  struct Shape {
    int height;
    int width;
    int images;
  };
  std::mt19937 random(21);
  for (const DType dtype : {DType::uint8, DType::float32, DType::float16, DType::bfloat16}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      for (const Shape shape : {Shape{1, 1, 1}, Shape{7, 5, 1}, Shape{16, 16, 5}, Shape{33, 61, 1}, Shape{24, 18, 2}}) {
        FinishSpec spec{.dtype = dtype, .memory_format = format};
        if (dtype != DType::uint8) {
          spec.scale = spec.normalize = true;
          spec.mean = {0.485F, 0.456F, 0.406F};
          spec.std = {0.229F, 0.224F, 0.225F};
        }
        const Finisher finisher(spec, 3, shape.height, shape.width, shape.images);
        const size_t each = size_t{3} * finisher.pixels_per_image() * static_cast<size_t>(shape.images);
        for (const size_t memory_bytes : {size_t{0}, 5 * each + 8192, size_t{1} << 20}) {
          GpuFinisher finishing(gpu, finisher, nullptr, {.memory_bytes = memory_bytes});
          int64_t samples = 0;
          for (const int64_t count : {7, 1, 16}) {
            CAPTURE(name_of(dtype));
            CAPTURE(static_cast<int>(format));
            CAPTURE(shape.height);
            CAPTURE(memory_bytes);
            std::vector<uint8_t> images(static_cast<size_t>(count) * each);
            for (uint8_t& value : images) value = static_cast<uint8_t>(random());
            const size_t bytes = static_cast<size_t>(count) * finisher.bytes_per_sample();
            std::vector<std::byte> wanted(bytes + 2 * kGuard, std::byte{0xEE});
            for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
              finisher.run(images.data() + i * each, wanted.data() + kGuard + i * finisher.bytes_per_sample());
            }
            std::vector<std::byte> got(wanted.size(), std::byte{0xEE});
            const GpuBlock memory(*gpu, got.size(), GpuMemory::device);
            const auto stream = gpu->stream();
            stream->upload(memory.data(), got.data(), got.size());
            stream->wait(10 * kSecond);
            finishing.finish(images.data(), count, memory.data() + kGuard);
            finishing.wait();
            stream->download(got.data(), memory.data(), got.size());
            stream->wait(10 * kSecond);
            REQUIRE(got == wanted);
            samples += count;
          }
          CHECK(finishing.figures().samples == samples);
          CHECK(finishing.figures().uploaded_bytes == samples * static_cast<int64_t>(each));
        }
      }
    }
  }
}

// Some images of a batch come from here and some from a GPU's exported memory, opened as another process would.
inline void check_exported(const std::shared_ptr<penstock::Gpu>& gpu) {
  using namespace penstock;
  const Finisher finisher({.dtype = DType::float16}, 3, 9, 14);
  constexpr size_t kEach = size_t{3} * 9 * 14;
  constexpr int64_t kSamples = 12;
  std::mt19937 random(22);
  std::vector<uint8_t> images(kSamples * kEach);
  for (uint8_t& value : images) value = static_cast<uint8_t>(random());

  const std::unique_ptr<ExportedMemory> exported = gpu->export_memory(images.size());
  REQUIRE(exported->bytes() >= images.size());
  const auto stream = gpu->stream();
  const GpuBlock made(*gpu, images.size(), GpuMemory::device);
  stream->upload(made.data(), reinterpret_cast<const std::byte*>(images.data()), images.size());
  stream->copy(exported->data(), made.data(), images.size());
  stream->wait(10 * kSecond);
  (void)stream->take_times();

  const std::unique_ptr<ExportedMemory> opened = gpu->open_exported(UniqueFd(::dup(exported->fd())), exported->bytes());
  CHECK(opened->fd() == -1);
  const auto* const there = reinterpret_cast<const uint8_t*>(opened->data());
  std::vector<std::byte> wanted(kSamples * finisher.bytes_per_sample());
  for (size_t i = 0; i < kSamples; ++i) {
    finisher.run(images.data() + i * kEach, wanted.data() + i * finisher.bytes_per_sample());
  }
  // Pieces of all, of two and of one image go through the finisher's memory.
  for (const size_t memory_bytes : {size_t{1} << 20, 2 * kEach + 8000, size_t{0}}) {
    GpuFinisher finishing(gpu, finisher, nullptr, {.memory_bytes = memory_bytes});
    const GpuBlock tensor(*gpu, wanted.size(), GpuMemory::device);
    finishing.finish({{there, 3, true}, {images.data() + 3 * kEach, 4}, {there + 7 * kEach, 5, true}}, tensor.data());
    finishing.wait();
    std::vector<std::byte> got(wanted.size());
    stream->download(got.data(), tensor.data(), got.size());
    stream->wait(10 * kSecond);
    CHECK(got == wanted);
    CHECK(finishing.figures().samples == kSamples);
    CHECK(finishing.figures().uploaded_bytes == 4 * static_cast<int64_t>(kEach));
    CHECK(finishing.figures().copied_bytes == 8 * static_cast<int64_t>(kEach));
  }
}

}  // namespace penstock_test
