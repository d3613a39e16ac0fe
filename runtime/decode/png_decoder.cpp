#include "runtime/decode/png_decoder.h"

#include <spng.h>

#include <new>

#include "runtime/decode/color_math.h"

namespace penstock {
namespace {

constexpr size_t max_chunk_bytes = size_t{8} << 20;
constexpr size_t max_chunks_bytes = size_t{32} << 20;  // of all chunks kept, after inflating

struct FreeContext {
  void operator()(spng_ctx* ctx) const noexcept { spng_ctx_free(ctx); }
};

// The palette as Pillow fills it: a ramp of grey, then the file's entries over it.
struct Palette {
  uint8_t rgb[256][3];
  explicit Palette(const spng_plte& plte) {
    for (unsigned i = 0; i < 256; ++i) rgb[i][0] = rgb[i][1] = rgb[i][2] = static_cast<uint8_t>(i);
    for (unsigned i = 0; i < plte.n_entries && i < 256; ++i) {
      rgb[i][0] = plte.entries[i].red;
      rgb[i][1] = plte.entries[i].green;
      rgb[i][2] = plte.entries[i].blue;
    }
  }
};

unsigned small_sample(const uint8_t* row, unsigned depth, size_t x) {
  const size_t bit = x * depth;
  return (row[bit / 8] >> (8 - depth - bit % 8)) & ((1U << depth) - 1);
}

// Columns [x0, x0 + count) of a row as the file has it (big-endian) to RGB.
void convert_row(const spng_ihdr& ihdr, const Palette& palette, const uint8_t* row, int x0, int count, uint8_t* out) {
  const unsigned depth = ihdr.bit_depth;
  const bool grey = ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE || ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA;
  const size_t channels = ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE || ihdr.color_type == SPNG_COLOR_TYPE_INDEXED ? 1
                          : ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA                                       ? 2
                          : ihdr.color_type == SPNG_COLOR_TYPE_TRUECOLOR                                             ? 3
                                                                         : 4;
  const size_t sample_bytes = depth == 16 ? 2 : 1;
  for (int i = 0; i < count; ++i, out += 3) {
    const auto x = static_cast<size_t>(x0 + i);
    if (ihdr.color_type == SPNG_COLOR_TYPE_INDEXED) {
      const unsigned index = depth == 8 ? row[x] : small_sample(row, depth, x);
      for (int c = 0; c < 3; ++c) out[c] = palette.rgb[index][c];
    } else if (depth < 8) {
      const auto v = static_cast<uint8_t>(small_sample(row, depth, x) * (255U / ((1U << depth) - 1)));
      out[0] = out[1] = out[2] = v;
    } else {
      const uint8_t* pixel = row + x * channels * sample_bytes;
      if (depth == 16 && ihdr.color_type == SPNG_COLOR_TYPE_GRAYSCALE) {
        out[0] = out[1] = out[2] = clip_grey16(pixel[0] << 8 | pixel[1]);
      } else if (grey) {
        out[0] = out[1] = out[2] = pixel[0];
      } else {
        for (size_t c = 0; c < 3; ++c) out[c] = pixel[c * sample_bytes];
      }
    }
  }
}

// Columns of a mask's row. A grey of one bit is 0 or 1, as Pillow has it; of two or four bits it is scaled, as an
// image.
void convert_mask_row(const spng_ihdr& ihdr, const uint8_t* row, int x0, int count, uint8_t* out) {
  const unsigned depth = ihdr.bit_depth;
  const bool indexed = ihdr.color_type == SPNG_COLOR_TYPE_INDEXED;
  const unsigned scale = indexed || depth == 1 || depth == 8 ? 1 : 255U / ((1U << depth) - 1);
  for (int i = 0; i < count; ++i, out += 3) {
    const auto x = static_cast<size_t>(x0 + i);
    out[0] = out[1] = out[2] = static_cast<uint8_t>((depth == 8 ? row[x] : small_sample(row, depth, x)) * scale);
  }
}

Verdict bad(int error) {
  if (error == SPNG_EMEM) {
    throw Error(ErrorKind::runtime, "out of memory while decoding a PNG file",
                "lower loader.threads or the decode limits");
  }
  if (error == SPNG_IO_EOF || error == SPNG_EOF || error == SPNG_EIDAT_TOO_SHORT) {
    return Verdict::bad("PNG: premature end of the data (truncated file)");
  }
  return Verdict::bad(std::string("PNG: ") + spng_strerror(error));
}

}  // namespace

Verdict PngDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, bool mask,
                           PixelBuffer& storage, PixelView& pixels) {
  const std::unique_ptr<spng_ctx, FreeContext> owner(spng_ctx_new(0));
  spng_ctx* const ctx = owner.get();
  if (ctx == nullptr) throw Error(ErrorKind::runtime, "out of memory: cannot create a PNG decoder");
  int error = spng_set_image_limits(ctx, static_cast<uint32_t>(header.width), static_cast<uint32_t>(header.height));
  if (error == 0) error = spng_set_chunk_limits(ctx, max_chunk_bytes, max_chunks_bytes);
  if (error == 0) error = spng_set_crc_action(ctx, SPNG_CRC_ERROR, SPNG_CRC_ERROR);
  if (error == 0) error = spng_set_png_buffer(ctx, bytes.data(), bytes.size());
  spng_ihdr ihdr{};
  if (error == 0) error = spng_get_ihdr(ctx, &ihdr);
  if (error != 0) return bad(error);
  if (static_cast<int>(ihdr.width) != header.width || static_cast<int>(ihdr.height) != header.height) {
    return Verdict::bad("PNG: the headers contradict each other");
  }
  if (mask && (ihdr.bit_depth > 8 ||
               (ihdr.color_type != SPNG_COLOR_TYPE_INDEXED && ihdr.color_type != SPNG_COLOR_TYPE_GRAYSCALE))) {
    return Verdict::bad("a mask is a PNG file with a palette or of grey, of 8 bits at most");
  }
  size_t image_bytes = 0;
  error = spng_decoded_image_size(ctx, SPNG_FMT_RAW, &image_bytes);
  if (error == 0) error = spng_decode_image(ctx, nullptr, 0, SPNG_FMT_RAW, SPNG_DECODE_PROGRESSIVE);
  if (error != 0) return bad(error);
  spng_plte plte{};
  if (ihdr.color_type == SPNG_COLOR_TYPE_INDEXED) {
    error = spng_get_plte(ctx, &plte);
    if (error != 0) return bad(error);
  }
  const Palette palette(plte);
  const auto convert = [&](const uint8_t* row, uint8_t* out) {
    mask ? convert_mask_row(ihdr, row, box.x, box.width, out) : convert_row(ihdr, palette, row, box.x, box.width, out);
  };
  const size_t row_bytes = image_bytes / ihdr.height;
  storage.resize(box.width, box.height);
  pixels = PixelView{storage.row(0), box.width, box.height, storage.row_bytes()};
  const bool interlaced = ihdr.interlace_method != SPNG_INTERLACE_NONE;
  try {
    raw_.assign(interlaced ? image_bytes : row_bytes, 0);
  } catch (const std::bad_alloc&) {
    return bad(SPNG_EMEM);
  }
  if (interlaced) {
    // Rows of all passes land in place; only after the last pass is any row complete.
    do {
      spng_row_info info{};
      error = spng_get_row_info(ctx, &info);
      if (error == 0) error = spng_decode_row(ctx, raw_.data() + row_bytes * info.row_num, row_bytes);
    } while (error == 0);
    if (error != SPNG_EOI) return bad(error);
    for (int y = 0; y < box.height; ++y) {
      convert(raw_.data() + row_bytes * static_cast<size_t>(box.y + y), storage.row(y));
    }
    return Verdict::good();
  }
  const int rows = box.y + box.height;
  for (int y = 0; y < rows; ++y) {
    error = spng_decode_row(ctx, raw_.data(), row_bytes);
    // The image's last row may report its end at once.
    if (error != 0 && !(error == SPNG_EOI && y == header.height - 1)) return bad(error);
    if (y >= box.y) convert(raw_.data(), storage.row(y - box.y));
  }
  return Verdict::good();
}

std::string png_library_version() {
  return std::string("libspng ") + spng_version_string();
}

}  // namespace penstock
