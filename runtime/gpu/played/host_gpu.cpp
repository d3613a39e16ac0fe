#include "runtime/gpu/played/host_gpu.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "runtime/base/thread_annotations.h"
#include "runtime/decode/decoder.h"
#include "runtime/gpu/gpu_alignment.h"
#include "runtime/gpu/played/host_link.h"
#include "runtime/gpu/played/host_stream.h"
#include "runtime/pixels/resample.h"

namespace penstock {
namespace {

// Decodes at once, and lets the stream put the pixels into their place.
class HostDecoder final : public PictureDecoder {
 public:
  using Later = std::function<void(std::function<void()>)>;
  HostDecoder(std::shared_ptr<HostLibrary> library, Later later)
      : library_(std::move(library)), later_(std::move(later)) {}

  const PictureDecoderFacts& facts() const noexcept override { return library_->facts; }
  const std::string& reason(Refusal refusal) const noexcept override { return reasons_[static_cast<size_t>(refusal)]; }
  void decode(std::byte* memory, std::span<LibraryPicture> pictures) override {
    for (LibraryPicture& picture : pictures) {
      if (!reasons_[static_cast<size_t>(Refusal::library)].empty()) {
        picture.refusal = Refusal::library;
        continue;
      }
      picture.refusal = library_->judge ? library_->judge(picture) : Refusal::none;
      if (picture.refusal != Refusal::none) {
        reasons_[static_cast<size_t>(picture.refusal)] = "it was told to refuse";
      } else if (!decode_one(memory, picture)) {
        picture.refusal = Refusal::file;
      }
    }
  }

 private:
  bool decode_one(std::byte* memory, const LibraryPicture& picture) {
    std::string& reason = reasons_[static_cast<size_t>(Refusal::file)];
    const EncodedView file(picture.file, picture.bytes);
    const Box region{picture.region.x, picture.region.y, picture.region.width, picture.region.height};
    ImageHeader header;
    if (const SampleStatus status = read_header(file, limits_, header); !status.ok()) {
      reason = status.reason;
      return false;
    }
    if (header.width != picture.width || header.height != picture.height ||
        !Box{0, 0, header.width, header.height}.contains(region)) {
      reason = "its headers say another size";
      return false;
    }
    PixelView pixels;
    if (const SampleStatus status = decoder_.decode(file, header, region, storage_, pixels); !status.ok()) {
      reason = status.reason;
      return false;
    }
    const size_t plane = static_cast<size_t>(region.width) * static_cast<size_t>(region.height);
    auto planes = std::make_shared<std::vector<uint8_t>>(3 * plane);
    to_planar(pixels, false, false, planes->data());
    later_([planes, to = memory + picture.to_at] { std::memcpy(to, planes->data(), planes->size()); });
    return true;
  }

  std::shared_ptr<HostLibrary> library_;
  Later later_;
  std::array<std::string, kRefusals> reasons_;
  DecodeLimits limits_;
  Decoder decoder_{limits_};
  PixelBuffer storage_;
};

class HostExportedMemory final : public ExportedMemory {
 public:
  HostExportedMemory(SharedMemory memory, std::function<void()> gone)
      : memory_(std::move(memory)), gone_(std::move(gone)) {}
  ~HostExportedMemory() override {
    if (gone_) gone_();
  }
  HostExportedMemory(const HostExportedMemory&) = delete;
  HostExportedMemory& operator=(const HostExportedMemory&) = delete;
  std::byte* data() const noexcept override { return memory_.data(); }
  size_t bytes() const noexcept override { return memory_.size(); }
  int fd() const noexcept override { return gone_ ? memory_.fd() : -1; }

 private:
  SharedMemory memory_;
  std::function<void()> gone_;  // empty: it was opened
};

class HostGpu final : public Gpu {
 public:
  HostGpu(int number, size_t memory_bytes, std::shared_ptr<HostLibrary> library) : library_(std::move(library)) {
    info_.number = number;
    info_.name = "this CPU";
    info_.memory_bytes = static_cast<int64_t>(memory_bytes);
  }
  const GpuInfo& info() const noexcept override { return info_; }

  std::byte* allocate(size_t bytes, GpuMemory where) override {
    MutexLock lock(mutex_);
    const size_t counted = where == GpuMemory::device ? bytes : 0;
    void* const memory = fits(counted) ? std::aligned_alloc(kGpuAlignment, gpu_aligned(bytes)) : nullptr;
    if (memory == nullptr) throw short_of(bytes, "out of memory");
    used_ += counted;
    blocks_[memory] = counted;
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, GpuMemory) noexcept override {
    MutexLock lock(mutex_);
    const auto block = blocks_.find(memory);
    used_ -= block->second;
    blocks_.erase(block);
    std::free(memory);
  }
  std::unique_ptr<GpuStream> stream() override {
    return std::make_unique<HostStream>([library = library_](HostStream& stream) -> std::unique_ptr<PictureDecoder> {
      if (!library->missing.empty()) throw Error(ErrorKind::runtime, library->missing);
      if (library->decoders-- <= 0) throw Error(ErrorKind::runtime, "no more decoders");
      return std::make_unique<HostDecoder>(
          library, [&stream](std::function<void()> run) { stream.later(std::move(run), &GpuTimes::library_ns); });
    });
  }

  std::unique_ptr<ExportedMemory> export_memory(size_t bytes) override {
    MutexLock lock(mutex_);
    if (!fits(bytes)) throw short_of(bytes, "out of memory");
    try {
      SharedMemory memory = SharedMemory::create("penstock-gpu", bytes);
      memory.seal_future_writes();
      auto shared = std::make_unique<HostExportedMemory>(std::move(memory), [this, bytes] {
        MutexLock relock(mutex_);
        used_ -= bytes;
      });
      used_ += bytes;
      return shared;
    } catch (const Error& error) {
      throw short_of(bytes, error.message());
    }
  }
  // Different for each process and number, as if each process had GPUs of its own.
  std::string identity() const override {
    return "this CPU, process " + std::to_string(::getpid()) + ", GPU " + std::to_string(info_.number);
  }
  std::string why_no_links() const override { return {}; }
  std::string link_id() override { return new_host_link_id(); }
  std::unique_ptr<GpuLink> link(const std::string& id, LinkEnd end) override { return open_host_link(id, end); }
  std::unique_ptr<ExportedMemory> open_exported(UniqueFd fd, size_t bytes) override {
    return std::make_unique<HostExportedMemory>(SharedMemory::open(std::move(fd), bytes, SharedMemory::Access::read),
                                                nullptr);
  }

 private:
  bool fits(size_t bytes) const PENSTOCK_REQUIRES(mutex_) {
    return bytes <= static_cast<size_t>(info_.memory_bytes) - used_;
  }
  GpuError short_of(size_t bytes, const std::string& why) const {
    return {GpuFault::out_of_memory, "GPU " + std::to_string(info_.number) + " (" + info_.name + "): allocating " +
                                         std::to_string(bytes) + " bytes: " + why};
  }

  std::shared_ptr<HostLibrary> library_;
  GpuInfo info_;
  Mutex mutex_;
  size_t used_ PENSTOCK_GUARDED_BY(mutex_) = 0;
  std::map<void*, size_t> blocks_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Gpu> open_host_gpu(int number, size_t memory_bytes, std::shared_ptr<HostLibrary> library) {
  return std::make_unique<HostGpu>(number, memory_bytes, std::move(library));
}

}  // namespace penstock
