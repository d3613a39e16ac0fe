// A library of a GPU's vendor that decodes JPEG files to pixels, in an arithmetic of its own: nvJPEG. For jobs of
// arithmetic `fast` alone.
//
//   std::unique_ptr<PictureDecoder> decoder = stream->picture_decoder(options);   // Error: there is none, and why
//   // behind what the GPU stream was told so far, before what comes next
//   decoder->decode(memory, pictures);
//   for (const LibraryPicture& p : pictures) if (p.refusal != Refusal::none) ...  // the CPU makes it
//   stream->wait(timeout_ns);                      // now the pixels of the others are there
//
// A picture's pixels are three planes of uint8 without gaps, of its region, at `to_at` of the in-flight batch's memory.
// The decoder is given only files whose status is known without decoding them (gpu_sample.h). The library may take
//   damage for pixels, and a status must not depend on who decodes.
// Safety: the decoder writes nothing but region.width x region.height x 3 bytes at each `to_at`; where the library
//   reads another size from the headers than LibraryPicture says, the picture is refused before it is decoded.
// Failure: by the picture, as a Refusal. Refusal::library says that the library is of no use from now on: decode()
//   refuses everything behind it. GpuError where the GPU itself fails.
// Ownership: goes before its GPU stream. Files must stay as they are until the stream's wait() returned.
// Thread-safety: as the GPU stream's: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/gpu/batch_layout.h"

namespace penstock {

enum class ChromaUpsampling : uint8_t { nearest, interpolated };

struct PictureDecoderOptions {
  ChromaUpsampling chroma = ChromaUpsampling::interpolated;
  size_t memory_bytes = size_t{32} << 20;  // of the GPU, that the library may allocate; as much pinned memory here
};

struct PictureDecoderFacts {
  std::string name;          // "nvJPEG 13.0.4"
  int engines = 0;           // the GPU's units for JPEG alone
  bool cuts_regions = true;  // else every picture's region has to be the whole picture
};

// Why a picture that was planned for the library was not decoded.
enum class Refusal : uint8_t { none, file, memory, library };
inline constexpr size_t kRefusals = 4;

constexpr std::string_view name_of(Refusal refusal) {
  constexpr std::string_view names[kRefusals] = {"none", "refused", "memory", "library"};
  return names[static_cast<size_t>(refusal)];
}

struct LibraryPicture {
  const std::byte* file = nullptr;
  size_t bytes = 0;
  int32_t width = 0;  // of the picture
  int32_t height = 0;
  GpuBox region;  // of it, that is wanted
  uint64_t to_at = 0;
  size_t place = 0;  // in the batch
  Refusal refusal = Refusal::none;
};

class PictureDecoder {
 public:
  virtual ~PictureDecoder() = default;
  virtual const PictureDecoderFacts& facts() const noexcept = 0;
  virtual void decode(std::byte* memory, std::span<LibraryPicture> pictures) = 0;
  // What the library said at its latest refusal of a kind. Empty: there was none.
  virtual const std::string& reason(Refusal refusal) const noexcept = 0;
};

}  // namespace penstock
