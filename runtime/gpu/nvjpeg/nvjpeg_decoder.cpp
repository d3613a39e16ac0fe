#include "runtime/gpu/nvjpeg/nvjpeg_decoder.h"

#include <utility>

#include "runtime/base/error.h"

namespace penstock {
namespace {

int allocate_from(void* pool, void** memory, size_t bytes, cudaStream_t) {
  *memory = static_cast<NvjpegPool*>(pool)->allocate(bytes);
  return *memory == nullptr ? 1 : 0;
}

int release_to(void* pool, void* memory, size_t, cudaStream_t) {
  static_cast<NvjpegPool*>(pool)->release(memory);
  return 0;
}

Refusal refusal_of(nvjpegStatus_t status) {
  switch (status) {
    case NVJPEG_STATUS_BAD_JPEG:
    case NVJPEG_STATUS_JPEG_NOT_SUPPORTED:
    case NVJPEG_STATUS_INCOMPLETE_BITSTREAM:
    case NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED: return Refusal::file;
    case NVJPEG_STATUS_ALLOCATOR_FAILURE: return Refusal::memory;
    default: return Refusal::library;
  }
}

bool is_whole(const LibraryPicture& picture) {
  const GpuBox& region = picture.region;
  return region.x == 0 && region.y == 0 && region.width == picture.width && region.height == picture.height;
}

bool is_inside(const LibraryPicture& picture) {
  const GpuBox& region = picture.region;
  return region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
         region.width <= picture.width - region.x && region.height <= picture.height - region.y;
}

const unsigned char* file_of(const LibraryPicture& picture) {
  return reinterpret_cast<const unsigned char*>(picture.file);
}

nvjpegImage_t image_of(std::byte* memory, const LibraryPicture& picture) {
  const auto width = static_cast<size_t>(picture.region.width);
  const size_t plane = width * static_cast<size_t>(picture.region.height);
  nvjpegImage_t image{};
  for (size_t c = 0; c < 3; ++c) {
    image.channel[c] = reinterpret_cast<unsigned char*>(memory + picture.to_at + c * plane);
    image.pitch[c] = width;
  }
  return image;
}

}  // namespace

void* NvjpegPool::allocate(size_t bytes) {
  MutexLock lock(mutex_);
  if (bytes > most_ - used_) return nullptr;
  void* const memory = allocate_(bytes);
  if (memory == nullptr) return nullptr;
  blocks_[memory] = bytes;
  used_ += bytes;
  return memory;
}

void NvjpegPool::release(void* memory) {
  MutexLock lock(mutex_);
  const auto block = blocks_.find(memory);
  if (block == blocks_.end()) return;  // nullptr, too
  used_ -= block->second;
  blocks_.erase(block);
  release_(memory);
}

void NvjpegDecoder::Batch::clear() {
  pictures.clear();
  files.clear();
  lengths.clear();
  images.clear();
  params.clear();
}

NvjpegDecoder::NvjpegDecoder(const NvjpegLibrary& library, NvjpegRuntime runtime, cudaStream_t stream,
                             const PictureDecoderOptions& options)
    : nvjpeg_(library),
      wait_(std::move(runtime.wait)),
      stream_(stream),
      gpu_pool_(std::move(runtime.allocate), std::move(runtime.release), options.memory_bytes),
      pinned_pool_(std::move(runtime.allocate_pinned), std::move(runtime.release_pinned), options.memory_bytes),
      gpu_allocator_{allocate_from, release_to, &gpu_pool_},
      pinned_allocator_{allocate_from, release_to, &pinned_pool_} {
  facts_.name = library.name();
  const unsigned flags = options.chroma == ChromaUpsampling::interpolated ? NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION
                                                                          : NVJPEG_FLAGS_DEFAULT;
  open_kernels(flags);
  open_engines(flags);
  facts_.cuts_regions = engines_ != nullptr;
}

template <class Object, class Create>
NvjpegDecoder::Owned<Object> NvjpegDecoder::make(const char* what, nvjpegStatus_t (*end)(Object), Create create) const {
  Object object = nullptr;
  const nvjpegStatus_t status = create(&object);
  if (status == NVJPEG_STATUS_SUCCESS) return {object, end};
  throw Error(ErrorKind::runtime, facts_.name + " (" + nvjpeg_.file + "): making " + what + ": " + text_of(status),
              "install another nvidia-nvjpeg, or say loader.nvjpeg: off");
}

void NvjpegDecoder::open_kernels(unsigned flags) {
  kernels_ = make<nvjpegHandle_t>("a handle", nvjpeg_.Destroy, [&](nvjpegHandle_t* handle) {
    return nvjpeg_.CreateExV2(NVJPEG_BACKEND_GPU_HYBRID, &gpu_allocator_, &pinned_allocator_, flags, handle);
  });
  nvjpegHandle_t const handle = kernels_.get();
  batch_state_ = make<nvjpegJpegState_t>("a state", nvjpeg_.JpegStateDestroy, [&](nvjpegJpegState_t* state) {
    return nvjpeg_.JpegStateCreate(handle, state);
  });
  one_decoder_ = make<nvjpegJpegDecoder_t>("a decoder", nvjpeg_.DecoderDestroy, [&](nvjpegJpegDecoder_t* decoder) {
    return nvjpeg_.DecoderCreate(handle, NVJPEG_BACKEND_GPU_HYBRID, decoder);
  });
  one_pinned_ = make<nvjpegBufferPinned_t>("a buffer", nvjpeg_.BufferPinnedDestroy, [&](nvjpegBufferPinned_t* buffer) {
    return nvjpeg_.BufferPinnedCreateV2(handle, &pinned_allocator_, buffer);
  });
  one_device_ = make<nvjpegBufferDevice_t>("a buffer", nvjpeg_.BufferDeviceDestroy, [&](nvjpegBufferDevice_t* buffer) {
    return nvjpeg_.BufferDeviceCreateV2(handle, &gpu_allocator_, buffer);
  });
  one_state_ = make<nvjpegJpegState_t>("a state", nvjpeg_.JpegStateDestroy, [&](nvjpegJpegState_t* state) {
    const nvjpegStatus_t status = nvjpeg_.DecoderStateCreate(handle, one_decoder_.get(), state);
    if (status != NVJPEG_STATUS_SUCCESS) return status;
    const nvjpegStatus_t pinned = nvjpeg_.StateAttachPinnedBuffer(*state, one_pinned_.get());
    const nvjpegStatus_t device = nvjpeg_.StateAttachDeviceBuffer(*state, one_device_.get());
    if (pinned == NVJPEG_STATUS_SUCCESS && device == NVJPEG_STATUS_SUCCESS) return NVJPEG_STATUS_SUCCESS;
    (void)nvjpeg_.JpegStateDestroy(*state);
    return pinned != NVJPEG_STATUS_SUCCESS ? pinned : device;
  });
  headers_ = make<nvjpegJpegStream_t>("a CUDA stream", nvjpeg_.JpegStreamDestroy, [&](nvjpegJpegStream_t* headers) {
    return nvjpeg_.JpegStreamCreate(handle, headers);
  });
}

// A GPU without engines, or a library that cannot use them, is no error.
void NvjpegDecoder::open_engines(unsigned flags) {
  if (nvjpeg_.DecodeBatchedEx == nullptr || nvjpeg_.DecodeBatchedSupportedEx == nullptr) return;
  nvjpegHandle_t handle = nullptr;
  if (nvjpeg_.CreateExV2(NVJPEG_BACKEND_HARDWARE, &gpu_allocator_, &pinned_allocator_, flags, &handle) !=
      NVJPEG_STATUS_SUCCESS) {
    return;
  }
  Owned<nvjpegHandle_t> engines(handle, nvjpeg_.Destroy);
  unsigned count = 1;  // at least, where the library cannot say
  unsigned cores = 0;
  if (nvjpeg_.GetHardwareDecoderInfo != nullptr) (void)nvjpeg_.GetHardwareDecoderInfo(handle, &count, &cores);
  nvjpegJpegState_t state = nullptr;
  if (count == 0 || nvjpeg_.JpegStateCreate(handle, &state) != NVJPEG_STATUS_SUCCESS) return;
  engines_ = std::move(engines);
  engine_state_ = {state, nvjpeg_.JpegStateDestroy};
  facts_.engines = static_cast<int>(count);
}

nvjpegDecodeParams_t NvjpegDecoder::params_of(size_t number) {
  while (params_.size() <= number) {
    params_.push_back(
        make<nvjpegDecodeParams_t>("parameters", nvjpeg_.DecodeParamsDestroy, [&](nvjpegDecodeParams_t* params) {
          nvjpegStatus_t status = nvjpeg_.DecodeParamsCreate(kernels_.get(), params);
          if (status != NVJPEG_STATUS_SUCCESS) return status;
          status = nvjpeg_.DecodeParamsSetOutputFormat(*params, NVJPEG_OUTPUT_RGB);
          if (status != NVJPEG_STATUS_SUCCESS) nvjpeg_.DecodeParamsDestroy(std::exchange(*params, nullptr));
          return status;
        }));
  }
  return params_[number].get();
}

void NvjpegDecoder::decode(std::byte* memory, std::span<LibraryPicture> pictures) {
  engine_batch_.clear();
  kernel_batch_.clear();
  std::vector<size_t> alone;
  for (size_t i = 0; i < pictures.size() && !failed(); ++i) {
    LibraryPicture& picture = pictures[i];
    nvjpegDecodeParams_t params = nullptr;
    try {
      params = params_of(i);
    } catch (const Error& error) {
      picture.refusal = Refusal::library;
      reasons_[static_cast<size_t>(Refusal::library)] = error.message();
      break;
    }
    const GpuBox& region = picture.region;
    const bool whole = is_whole(picture);
    nvjpegStatus_t status = is_inside(picture) ? read_headers(picture) : NVJPEG_STATUS_BAD_JPEG;
    if (status == NVJPEG_STATUS_SUCCESS) {
      status = whole ? nvjpeg_.DecodeParamsSetROI(params, 0, 0, -1, -1)
                     : nvjpeg_.DecodeParamsSetROI(params, region.x, region.y, region.width, region.height);
    }
    if (status != NVJPEG_STATUS_SUCCESS) {
      refuse(picture, status, "reading a picture's headers");
    } else if (engines_ != nullptr && engines_take(params)) {
      add(memory, picture, params, engine_batch_);
    } else if (engines_ == nullptr && whole) {
      add(memory, picture, params, kernel_batch_);
    } else {
      alone.push_back(i);
    }
  }
  decode_batch(memory, engine_batch_, true);
  decode_batch(memory, kernel_batch_, false);
  for (const size_t i : alone) decode_one(memory, pictures[i], params_of(i));
  if (!failed()) return;
  // What it was given before it failed is no better.
  for (LibraryPicture& picture : pictures) picture.refusal = Refusal::library;
}

// It writes as many pixels as it finds in the headers, so they must be ours.
nvjpegStatus_t NvjpegDecoder::read_headers(const LibraryPicture& picture) {
  nvjpegJpegStream_t const headers = headers_.get();
  unsigned width = 0;
  unsigned height = 0;
  unsigned components = 0;
  nvjpegStatus_t status = nvjpeg_.JpegStreamParseHeader(kernels_.get(), file_of(picture), picture.bytes, headers);
  if (status == NVJPEG_STATUS_SUCCESS) status = nvjpeg_.JpegStreamGetFrameDimensions(headers, &width, &height);
  if (status == NVJPEG_STATUS_SUCCESS) status = nvjpeg_.JpegStreamGetComponentsNum(headers, &components);
  if (status != NVJPEG_STATUS_SUCCESS) return status;
  return width == static_cast<unsigned>(picture.width) && height == static_cast<unsigned>(picture.height) &&
                 components == 3
             ? NVJPEG_STATUS_SUCCESS
             : NVJPEG_STATUS_BAD_JPEG;
}

bool NvjpegDecoder::engines_take(nvjpegDecodeParams_t params) const {
  int no = 1;  // 0: they do
  const nvjpegStatus_t status = nvjpeg_.DecodeBatchedSupportedEx(engines_.get(), headers_.get(), params, &no);
  return status == NVJPEG_STATUS_SUCCESS && no == 0;
}

void NvjpegDecoder::add(std::byte* memory, LibraryPicture& picture, nvjpegDecodeParams_t params, Batch& batch) {
  batch.pictures.push_back(&picture);
  batch.files.push_back(file_of(picture));
  batch.lengths.push_back(picture.bytes);
  batch.images.push_back(image_of(memory, picture));
  batch.params.push_back(params);
}

void NvjpegDecoder::decode_batch(std::byte* memory, Batch& batch, bool engines) {
  if (batch.pictures.empty() || failed()) return;
  const nvjpegStatus_t status = run_batch(batch, engines);
  if (status == NVJPEG_STATUS_SUCCESS) return;
  if (refusal_of(status) == Refusal::library) {
    refuse(*batch.pictures.front(), status, "decoding a batch");
    return;
  }
  for (size_t i = 0; i < batch.pictures.size(); ++i) decode_one(memory, *batch.pictures[i], batch.params[i]);
}

nvjpegStatus_t NvjpegDecoder::run_batch(Batch& batch, bool engines) {
  nvjpegHandle_t const handle = engines ? engines_.get() : kernels_.get();
  nvjpegJpegState_t const state = engines ? engine_state_.get() : batch_state_.get();
  const nvjpegStatus_t status =
      nvjpeg_.DecodeBatchedInitialize(handle, state, static_cast<int>(batch.pictures.size()), 1, NVJPEG_OUTPUT_RGB);
  if (status != NVJPEG_STATUS_SUCCESS) return status;
  return engines ? nvjpeg_.DecodeBatchedEx(handle, state, batch.files.data(), batch.lengths.data(), batch.images.data(),
                                           batch.params.data(), stream_)
                 : nvjpeg_.DecodeBatched(handle, state, batch.files.data(), batch.lengths.data(), batch.images.data(),
                                         stream_);
}

void NvjpegDecoder::decode_one(std::byte* memory, LibraryPicture& picture, nvjpegDecodeParams_t params) {
  if (failed()) return;
  wait_();  // the picture before this one, or a batch that came to nothing, is still in the buffers
  nvjpegImage_t image = image_of(memory, picture);
  nvjpegStatus_t status =
      nvjpeg_.JpegStreamParse(kernels_.get(), file_of(picture), picture.bytes, 0, 0, headers_.get());
  if (status == NVJPEG_STATUS_SUCCESS) {
    status = nvjpeg_.DecodeJpeg(kernels_.get(), one_decoder_.get(), one_state_.get(), headers_.get(), &image, params,
                                stream_);
  }
  if (status != NVJPEG_STATUS_SUCCESS) refuse(picture, status, "decoding a picture");
}

void NvjpegDecoder::refuse(LibraryPicture& picture, nvjpegStatus_t status, const char* what) {
  picture.refusal = refusal_of(status);
  reasons_[static_cast<size_t>(picture.refusal)] = std::string(what) + ": " + text_of(status);
}

}  // namespace penstock
