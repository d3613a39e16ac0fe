#include "runtime/decode/decoder.h"

#include <string_view>
#include <utility>

#include "runtime/base/switches.h"
#include "runtime/decode/formats/bmp_decoder.h"
#include "runtime/decode/formats/gif_decoder.h"
#include "runtime/decode/formats/png_decoder.h"
#include "runtime/decode/formats/pnm_decoder.h"
#include "runtime/decode/formats/tiff_decoder.h"
#include "runtime/decode/formats/webp_decoder.h"
#include "runtime/decode/jpeg/jpeg_decoder.h"
#include "runtime/decode/jpeg/sample_grid.h"
#include "runtime/decode/orientation.h"

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

void check_reduction(const ImageHeader& header, int reduction) {
  if (reduction == 1) return;
  if ((reduction != 2 && reduction != 4 && reduction != 8) || header.format != ImageFormat::jpeg) {
    throw Error(ErrorKind::usage, "decode: a reduction by " + std::to_string(reduction) +
                                      "; JPEG files can be decoded at 1/2, 1/4 and 1/8, others not");
  }
}

}  // namespace

class Decoder::Impl {
 public:
  Impl(const DecodeLimits& limits, const DecoderOptions& options) : jpeg(limits, options) {}

  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels, const DecodeOptions& decode_options) {
    switch (header.format) {
      case ImageFormat::jpeg: return jpeg.decode(bytes, header, box, storage, pixels, decode_options);
      case ImageFormat::png: return png.decode(bytes, header, box, storage, pixels);
      case ImageFormat::pnm: return pnm.decode(bytes, header, box, storage, pixels);
      case ImageFormat::bmp: return bmp.decode(bytes, header, box, storage, pixels);
      case ImageFormat::gif: return gif.decode(bytes, header, box, storage, pixels);
      case ImageFormat::webp: return webp.decode(bytes, header, box, storage, pixels);
      case ImageFormat::tiff: return tiff.decode(bytes, header, box, storage, pixels);
      case ImageFormat::unknown: break;
    }
    throw Error(ErrorKind::usage, "decode: a header that read_header did not fill");
  }

  // JPEG's own memory is that of some rows, and the library's goes with each picture.
  void let_large_go() {
    png = {};
    pnm = {};
    bmp = {};
    gif = {};
    webp = {};
    tiff = {};
    stored.let_large_go();
  }

  JpegDecoder jpeg;
  PngDecoder png;
  PnmDecoder pnm;
  BmpDecoder bmp;
  GifDecoder gif;
  WebpDecoder webp;
  TiffDecoder tiff;
  PixelBuffer stored;  // pixels before they are turned
};

DecoderOptions DecoderOptions::from_environment() {
  return {.own_jpeg = switches().decode != "library"};
}

Decoder::Decoder(const DecodeLimits& limits, const DecoderOptions& options)
    : impl_(std::make_unique<Impl>(limits, options)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

SampleStatus check_mask(const ImageHeader& header) {
  if (header.format != ImageFormat::png) return SampleStatus::bad("a mask is a PNG file with a palette or of grey");
  if (header.orientation > 1) return SampleStatus::bad("a mask cannot be turned by its EXIF data");
  return SampleStatus::good();
}

SampleStatus Decoder::decode_mask(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                  PixelView& pixels) {
  check_box(header, box);
  if (SampleStatus status = check_mask(header); !status.ok()) return status;
  return impl_->png.decode_mask(bytes, header, box, storage, pixels);
}

SampleStatus Decoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                             PixelView& pixels, const DecodeOptions& decode_options) {
  check_reduction(header, decode_options.reduction);
  ImageHeader reduced = header;
  reduced.width = reduced_size(header.width, decode_options.reduction);
  reduced.height = reduced_size(header.height, decode_options.reduction);
  check_box(reduced, box);
  if (decode_options.judges()) check_box(header, decode_options.judged);
  if (header.orientation <= 1) return impl_->decode(bytes, header, box, storage, pixels, decode_options);
  ImageHeader stored = header;
  if (header.swaps_sides()) std::swap(stored.width, stored.height);
  DecodeOptions of_stored = decode_options;
  of_stored.rows = nullptr;
  if (decode_options.judges()) of_stored.judged = stored_box(decode_options.judged, header);
  PixelView found;
  const SampleStatus status = impl_->decode(bytes, stored, stored_box(box, reduced), impl_->stored, found, of_stored);
  if (!status.ok()) return status;
  turn(found, header.orientation, storage);
  pixels = {storage.row(0), box.width, box.height, storage.row_bytes()};
  return status;
}

const DecodeCounts& Decoder::counts() const noexcept {
  return impl_->jpeg.counts();
}

void Decoder::let_large_go() {
  impl_->let_large_go();
}

std::string decoder_versions() {
  std::string text = jpeg_library_version() + "; " + png_library_version();
  for (const std::string& library : {webp_library_version(), tiff_library_version()}) {
    if (!library.empty()) text += "; " + library;
  }
  return text;
}

}  // namespace penstock
