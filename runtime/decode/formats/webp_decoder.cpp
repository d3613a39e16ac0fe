#include "runtime/decode/formats/webp_decoder.h"

#include <cstring>
#include <memory>
#include <new>

#if PENSTOCK_HAVE_WEBP
#include <webp/decode.h>
#include <webp/demux.h>
#endif

#include "runtime/base/take_large.h"
#include "runtime/decode/header_reader.h"

namespace penstock {

SampleStatus read_webp_header(EncodedView bytes, const DecodeLimits& limits, ImageHeader& header) {
#if !PENSTOCK_HAVE_WEBP
  return SampleStatus::bad("WebP support was left out at build time");
#endif
  HeaderReader in(bytes);
  if (!in.has(30)) return SampleStatus::bad("premature end of data in the WebP header");
  in.skip(15);
  const unsigned kind = in.u8();
  in.skip(4);
  uint32_t width = 0;
  uint32_t height = 0;
  if (kind == 'X') {
    in.skip(4);
    width = in.le16();
    width = (width | in.u8() << 16) + 1;
    height = in.le16();
    height = (height | in.u8() << 16) + 1;
  } else if (kind == 'L') {
    if (in.u8() != 0x2F) return SampleStatus::bad("WebP: not a lossless image");
    const uint32_t fields = in.le32();
    width = (fields & 0x3FFF) + 1;
    height = (fields >> 14 & 0x3FFF) + 1;
  } else {
    in.skip(6);
    width = in.le16() & 0x3FFF;
    height = in.le16() & 0x3FFF;
  }
  return check_size(width, height, limits, header);
}

#if PENSTOCK_HAVE_WEBP

namespace {

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const noexcept { WebPDemuxDelete(demuxer); }
};

struct Frame {
  WebPIterator iterator{};
  ~Frame() { WebPDemuxReleaseIterator(&iterator); }
};

[[noreturn]] void out_of_memory() {
  throw Error(ErrorKind::runtime, "out of memory while decoding a WebP file",
              "lower loader.threads or the decode limits");
}

SampleStatus status_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OK: return SampleStatus::good();
    case VP8_STATUS_OUT_OF_MEMORY: out_of_memory();
    case VP8_STATUS_NOT_ENOUGH_DATA: return SampleStatus::bad("WebP: premature end of the data (truncated file)");
    case VP8_STATUS_UNSUPPORTED_FEATURE: return SampleStatus::bad("WebP: unsupported feature");
    default: return SampleStatus::bad("WebP: broken data");
  }
}

}  // namespace

SampleStatus WebpDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                 PixelView& pixels) {
  const WebPData data{raw_bytes(bytes), bytes.size()};
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&data));
  if (demuxer == nullptr) return SampleStatus::bad("WebP: broken or truncated file");
  const uint32_t width = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH);
  const uint32_t height = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT);
  if (width != static_cast<uint32_t>(header.width) || height != static_cast<uint32_t>(header.height)) {
    return SampleStatus::bad("WebP: the headers contradict each other");
  }
  Frame frame;
  WebPIterator& part = frame.iterator;
  if (WebPDemuxGetFrame(demuxer.get(), 1, &part) == 0) return SampleStatus::bad("WebP: no image in the file");
  const Box place{part.x_offset, part.y_offset, part.width, part.height};
  if (place.width < 1 || place.height < 1 || !Box{0, 0, header.width, header.height}.contains(place)) {
    return SampleStatus::bad("WebP: a frame outside the canvas");
  }
  storage.resize(header.width, header.height);
  const bool whole = place.width == header.width && place.height == header.height;
  if (!whole) std::memset(storage.row(0), 0, storage.row_bytes() * static_cast<size_t>(header.height));

  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) {
    throw Error(ErrorKind::runtime, "libwebp is another version than this was built for", "build again");
  }
  // An alpha plane is decoded, though dropped: a broken one makes a broken file.
  const bool alpha = part.has_alpha != 0;
  uint8_t* const target = storage.row(place.y) + static_cast<size_t>(place.x) * 3;
  const size_t rgba_stride = static_cast<size_t>(place.width) * 4;
  config.output.is_external_memory = 1;
  config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
  // The library decodes rows as they come, but files without losses as a whole.
  if (WebPGetFeatures(part.fragment.bytes, part.fragment.size, &config.input) == VP8_STATUS_OK &&
      (alpha || config.input.format != 1)) {
    take_large(rgba_stride * static_cast<size_t>(place.height));
  }
  if (alpha) {
    take_large(rgba_stride * static_cast<size_t>(place.height));
    try {
      rgba_.resize(rgba_stride * static_cast<size_t>(place.height));
    } catch (const std::bad_alloc&) {
      out_of_memory();
    }
    config.output.u.RGBA = {rgba_.data(), static_cast<int>(rgba_stride), rgba_.size()};
  } else {
    const size_t stride = storage.row_bytes();
    config.output.u.RGBA = {target, static_cast<int>(stride),
                            stride * static_cast<size_t>(place.height - 1) + static_cast<size_t>(place.width) * 3};
  }
  const VP8StatusCode status = WebPDecode(part.fragment.bytes, part.fragment.size, &config);
  WebPFreeDecBuffer(&config.output);
  const SampleStatus sample_status = status_of(status);
  if (!sample_status.ok()) return sample_status;
  for (int y = 0; alpha && y < place.height; ++y) {
    const uint8_t* from = rgba_.data() + rgba_stride * static_cast<size_t>(y);
    uint8_t* to = target + storage.row_bytes() * static_cast<size_t>(y);
    for (int x = 0; x < place.width; ++x, from += 4, to += 3) std::memcpy(to, from, 3);
  }
  pixels = view_of_box(storage, box);
  return SampleStatus::good();
}

std::string webp_library_version() {
  const int version = WebPGetDecoderVersion();
  return "libwebp " + std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 255) + "." +
         std::to_string(version & 255);
}

#else

SampleStatus WebpDecoder::decode(EncodedView, const ImageHeader&, const Box&, PixelBuffer&, PixelView&) {
  return SampleStatus::bad("WebP support was left out at build time");
}

std::string webp_library_version() {
  return {};
}

#endif

}  // namespace penstock
