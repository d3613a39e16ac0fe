#include "runtime/decode/decoder.h"

#include <cstdlib>
#include <string_view>

#include "runtime/decode/jpeg_decoder.h"
#include "runtime/decode/png_decoder.h"

namespace penstock {

namespace {

void check_box(const ImageHeader& header, const Box& box) {
  if (box.width < 1 || box.height < 1 || !Box{0, 0, header.width, header.height}.contains(box)) {
    throw Error(ErrorKind::usage, "decode: box [" + std::to_string(box.x) + ", " + std::to_string(box.y) + ", " +
                                      std::to_string(box.width) + ", " + std::to_string(box.height) +
                                      "] is empty or lies outside the image of " + std::to_string(header.width) + "x" +
                                      std::to_string(header.height));
  }
}

}  // namespace

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

Verdict Decoder::decode_mask(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                             PixelView& pixels) {
  check_box(header, box);
  if (header.format != ImageFormat::png) return Verdict::bad("a mask is a PNG file with a palette or of grey");
  return impl_->png.decode_mask(bytes, header, box, storage, pixels);
}

Verdict Decoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                        PixelView& pixels) {
  check_box(header, box);
  switch (header.format) {
    case ImageFormat::jpeg:
      return impl_->jpeg.decode(bytes, header, box, storage, pixels);
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
