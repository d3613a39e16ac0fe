// An in-flight batch's decoder by nvJPEG (gpu/picture_decoder.h).
//
//   NvjpegDecoder decoder(nvjpeg_library(), runtime, stream, options);    // Error: it cannot be had on this GPU
//   decoder.decode(memory, pictures);
//
// Which way a picture goes, by what the GPU has:
//   engines (NVJPEG_BACKEND_HARDWARE)   one call for all that they take, of each picture its region; the others one
//                                       by one, by kernels, their region too
//   none (NVJPEG_BACKEND_GPU_HYBRID)    one call for all, whole pictures: such batches know no regions (facts())
// A batch that comes back with an error is decoded again one by one, so that only the picture that is to blame is
//   refused.
// Memory: the library allocates through `runtime`, on the GPU and here; what would exceed options.memory_bytes it does
//   not get. Between pictures that go one by one the CUDA stream is waited for, as their buffers are the same.
// No CUDA function is called from here but through `runtime`, so tests run it with a library of their own and no GPU.
// Thread-safety: one at a time. Ownership: goes before the CUDA stream; `library` outlives it.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/nvjpeg/nvjpeg_library.h"
#include "runtime/gpu/picture_decoder.h"

namespace penstock {

// What it needs of CUDA.
struct NvjpegRuntime {
  std::function<void*(size_t bytes)> allocate;  // on the GPU; nullptr: there is none
  std::function<void(void* memory)> release;
  std::function<void*(size_t bytes)> allocate_pinned;
  std::function<void(void* memory)> release_pinned;
  std::function<void()> wait;  // for the CUDA stream; GpuError where it fails
};

// A bound on what the library allocates of one kind of memory; it may call from threads of its own.
class NvjpegPool {
 public:
  NvjpegPool(std::function<void*(size_t)> allocate, std::function<void(void*)> release, size_t most)
      : allocate_(std::move(allocate)), release_(std::move(release)), most_(most) {}
  void* allocate(size_t bytes);
  void release(void* memory);

 private:
  std::function<void*(size_t)> allocate_;
  std::function<void(void*)> release_;
  const size_t most_;
  Mutex mutex_;
  size_t used_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  std::map<void*, size_t> blocks_ PENSTOCK_GUARDED_BY(mutex_);
};

class NvjpegDecoder final : public PictureDecoder {
 public:
  NvjpegDecoder(const NvjpegLibrary& library, NvjpegRuntime runtime, cudaStream_t stream,
                const PictureDecoderOptions& options);
  NvjpegDecoder(const NvjpegDecoder&) = delete;
  NvjpegDecoder& operator=(const NvjpegDecoder&) = delete;

  const PictureDecoderFacts& facts() const noexcept override { return facts_; }
  const std::string& reason(Refusal refusal) const noexcept override { return reasons_[static_cast<size_t>(refusal)]; }
  void decode(std::byte* memory, std::span<LibraryPicture> pictures) override;

 private:
  // One of the library's objects, and what ends it.
  template <class Object>
  using Owned = std::unique_ptr<std::remove_pointer_t<Object>, nvjpegStatus_t (*)(Object)>;

  struct Batch {
    std::vector<LibraryPicture*> pictures;
    std::vector<const unsigned char*> files;
    std::vector<size_t> lengths;
    std::vector<nvjpegImage_t> images;
    std::vector<nvjpegDecodeParams_t> params;
    void clear();
  };

  template <class Object, class Create>
  Owned<Object> make(const char* what, nvjpegStatus_t (*end)(Object), Create create) const;
  void open_engines(unsigned flags);
  void open_kernels(unsigned flags);
  nvjpegDecodeParams_t params_of(size_t number);

  nvjpegStatus_t read_headers(const LibraryPicture& picture);
  bool engines_take(nvjpegDecodeParams_t params) const;
  static void add(std::byte* memory, LibraryPicture& picture, nvjpegDecodeParams_t params, Batch& batch);
  void decode_batch(std::byte* memory, Batch& batch, bool engines);
  nvjpegStatus_t run_batch(Batch& batch, bool engines);
  void decode_one(std::byte* memory, LibraryPicture& picture, nvjpegDecodeParams_t params);
  void refuse(LibraryPicture& picture, nvjpegStatus_t status, const char* what);
  bool failed() const noexcept { return !reasons_[static_cast<size_t>(Refusal::library)].empty(); }

  const NvjpegLibrary& nvjpeg_;
  std::function<void()> wait_;
  cudaStream_t stream_;
  PictureDecoderFacts facts_;
  std::array<std::string, kRefusals> reasons_;
  NvjpegPool gpu_pool_;
  NvjpegPool pinned_pool_;
  nvjpegDevAllocatorV2_t gpu_allocator_{};
  nvjpegPinnedAllocatorV2_t pinned_allocator_{};
  // In the order of making: each needs some before it.
  Owned<nvjpegHandle_t> engines_{nullptr, nullptr};
  Owned<nvjpegHandle_t> kernels_{nullptr, nullptr};
  Owned<nvjpegJpegState_t> engine_state_{nullptr, nullptr};
  Owned<nvjpegJpegState_t> batch_state_{nullptr, nullptr};
  Owned<nvjpegJpegDecoder_t> one_decoder_{nullptr, nullptr};
  Owned<nvjpegBufferPinned_t> one_pinned_{nullptr, nullptr};
  Owned<nvjpegBufferDevice_t> one_device_{nullptr, nullptr};
  Owned<nvjpegJpegState_t> one_state_{nullptr, nullptr};
  Owned<nvjpegJpegStream_t> headers_{nullptr, nullptr};
  std::vector<Owned<nvjpegDecodeParams_t>> params_;  // by picture of a batch
  Batch engine_batch_;
  Batch kernel_batch_;
};

}  // namespace penstock
