// nvJPEG's functions, loaded at run time: nothing links libnvjpeg, so the component works where there is none.
//
//   const NvjpegLibrary& nvjpeg = nvjpeg_library();    // Error(runtime): none, where it looked, what to do
//   nvjpegStatus_t status = nvjpeg.CreateExV2(...);
//   std::string name = nvjpeg.name();                  // "nvJPEG 13.0.4"
//
// Looked for in this order: $PENSTOCK_NVJPEG (a file); libnvjpeg.so.13 and .12 where the loader looks; the folders of
//   PyPI's nvidia-nvjpeg (nvidia/cu13/lib) and nvidia-nvjpeg-cu12 (nvidia/nvjpeg/lib) of the Python environment of this
//   program (runtime/base/library_search.h). Version 12 is the oldest that has all functions.
// Types are the header's (nvjpeg.h of the toolkit or of PyPI), so a table that does not fit does not compile.
// Ownership: stays loaded. Thread-safety: any thread.
#pragma once

#include <nvjpeg.h>

#include <string>
#include <vector>

namespace penstock {

// One line a function: a name without its prefix. What is looked for is also what exists.
#define PENSTOCK_NVJPEG_FUNCTIONS(X) \
  X(GetProperty)                     \
  X(CreateExV2)                      \
  X(Destroy)                         \
  X(JpegStateCreate)                 \
  X(JpegStateDestroy)                \
  X(JpegStreamCreate)                \
  X(JpegStreamDestroy)               \
  X(JpegStreamParse)                 \
  X(JpegStreamParseHeader)           \
  X(JpegStreamGetFrameDimensions)    \
  X(JpegStreamGetComponentsNum)      \
  X(DecodeParamsCreate)              \
  X(DecodeParamsDestroy)             \
  X(DecodeParamsSetOutputFormat)     \
  X(DecodeParamsSetROI)              \
  X(DecodeBatchedInitialize)         \
  X(DecodeBatched)                   \
  X(DecoderCreate)                   \
  X(DecoderDestroy)                  \
  X(DecoderStateCreate)              \
  X(DecodeJpeg)                      \
  X(BufferPinnedCreateV2)            \
  X(BufferPinnedDestroy)             \
  X(BufferDeviceCreateV2)            \
  X(BufferDeviceDestroy)             \
  X(StateAttachPinnedBuffer)         \
  X(StateAttachDeviceBuffer)
// Functions of newer versions, or of the engines alone; nullptr where the library has none.
#define PENSTOCK_NVJPEG_OPTIONAL_FUNCTIONS(X) \
  X(GetHardwareDecoderInfo)                   \
  X(DecodeBatchedSupportedEx)                 \
  X(DecodeBatchedEx)

struct NvjpegLibrary {
#define PENSTOCK_NVJPEG_MEMBER(name) decltype(&::nvjpeg##name) name = nullptr;
  PENSTOCK_NVJPEG_FUNCTIONS(PENSTOCK_NVJPEG_MEMBER)
  PENSTOCK_NVJPEG_OPTIONAL_FUNCTIONS(PENSTOCK_NVJPEG_MEMBER)
#undef PENSTOCK_NVJPEG_MEMBER
  std::string file;  // as it was opened
  std::string name() const;
};

const NvjpegLibrary& nvjpeg_library();

// What is tried, in order.
std::vector<std::string> nvjpeg_candidates();
// One of them; false, and why.
bool load_nvjpeg(const std::string& file, NvjpegLibrary& library, std::string& why_not);

const char* text_of(nvjpegStatus_t status) noexcept;

}  // namespace penstock
