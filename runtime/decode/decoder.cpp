#include "runtime/decode/decoder.h"

#include <cstdlib>
#include <string_view>

#include "runtime/decode/jpeg_decoder.h"
#include "runtime/decode/png_decoder.h"

namespace penstock {

class Decoder::Impl {
 public:
  Impl(const DecodeLimits& limits, const DecodeOptions& options) : jpeg(limits, options) {}
  JpegDecoder jpeg;
  PngDecoder png;
};

DecodeOptions DecodeOptions::from_environment() {
  const char* const value = std::getenv("PENSTOCK_DECODE");
  return {.own_jpeg = value == nullptr || std::string_view(value) != "library"};
}

Decoder::Decoder(const DecodeLimits& limits, const DecodeOptions& options)
    : impl_(std::make_unique<Impl>(limits, options)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Verdict Decoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                        PixelView& pixels, const SideIndex* index) {
  if (box.width < 1 || box.height < 1 || !Box{0, 0, header.width, header.height}.contains(box)) {
    throw Error(ErrorKind::usage, "decode: box [" + std::to_string(box.x) + ", " + std::to_string(box.y) + ", " +
                                      std::to_string(box.width) + ", " + std::to_string(box.height) +
                                      "] is empty or lies outside the image of " + std::to_string(header.width) + "x" +
                                      std::to_string(header.height));
  }
  switch (header.format) {
    case ImageFormat::jpeg:
      return impl_->jpeg.decode(bytes, header, box, storage, pixels, index);
    case ImageFormat::png:
      return impl_->png.decode(bytes, header, box, storage, pixels);
    default:
      throw Error(ErrorKind::usage, "decode: a header that read_header did not fill");
  }
}

const DecodeCounts& Decoder::counts() const noexcept {
  return impl_->jpeg.counts();
}

std::string decoder_versions() {
  return jpeg_library_version() + "; " + png_library_version();
}

}  // namespace penstock
