#include "runtime/decode/formats/tiff_decoder.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#if PENSTOCK_HAVE_TIFF
#include <tiffio.h>
#endif

#include "runtime/base/take_large.h"
#include "runtime/decode/color_math.h"
#include "runtime/decode/formats/tiff_header.h"
#include "runtime/decode/header_reader.h"

namespace penstock {

#if PENSTOCK_HAVE_TIFF

namespace {

using Mode = TiffHeader::Mode;

SampleStatus truncated() {
  return SampleStatus::bad("TIFF: premature end of the data (truncated file)");
}

bool is_number(const TiffHeader& tiff) {
  return tiff.mode == Mode::integer || tiff.mode == Mode::real;
}

uint8_t reversed_bits(uint8_t v) {
  unsigned out = 0;
  for (int i = 0; i < 8; ++i) out = out << 1 | (v >> i & 1U);
  return static_cast<uint8_t>(out);
}

uint8_t clip(int64_t v) {
  return static_cast<uint8_t>(std::clamp<int64_t>(v, 0, 255));
}

uint8_t divided_by_alpha(int value, int alpha) {
  if (alpha == 0) return 0;
  return alpha == 255 ? static_cast<uint8_t>(value) : clip(value * 255 / alpha);
}

uint8_t number(const TiffHeader& tiff, const uint8_t* row, size_t x, bool big) {
  if (tiff.bits == 12) {
    const uint8_t* p = row + x / 2 * 3;
    return clip(x % 2 == 0 ? p[0] << 4 | p[1] >> 4 : (p[1] & 15) << 8 | p[2]);
  }
  const size_t size = tiff.bits / 8;
  uint32_t bits = 0;
  for (size_t i = 0; i < size; ++i) bits = bits << 8 | row[x * size + (big ? i : size - 1 - i)];
  if (tiff.mode == Mode::real) {
    float v = 0;
    std::memcpy(&v, &bits, sizeof v);
    return v >= 255.0F ? uint8_t{255} : v > 0.0F ? static_cast<uint8_t>(v) : uint8_t{0};
  }
  if (size == 2) return clip(tiff.is_signed ? static_cast<int16_t>(bits) : static_cast<int64_t>(bits));
  return clip(static_cast<int32_t>(bits));  // mode I is signed, whatever the file says
}

// `count` pixels from column x0 of a row to RGB. `big`: samples of more than 8 bits are big-endian.
void convert_row(const TiffHeader& tiff, bool big, const uint8_t* row, size_t x0, size_t count, uint8_t* out) {
  const size_t n = tiff.samples;
  for (size_t i = 0; i < count; ++i, out += 3) {
    const size_t x = x0 + i;
    switch (tiff.mode) {
      case Mode::grey:
      case Mode::palette: {
        unsigned v = 0;
        if (tiff.bits == 8) {
          v = row[x * n];
        } else {
          const size_t bit = x * tiff.bits;
          v = static_cast<unsigned>(row[bit / 8] >> (8 - tiff.bits - bit % 8)) & ((1U << tiff.bits) - 1);
        }
        if (tiff.mode == Mode::palette) {
          std::copy(tiff.colours[v].begin(), tiff.colours[v].end(), out);
          break;
        }
        v *= 255U / ((1U << tiff.bits) - 1);
        out[0] = out[1] = out[2] = static_cast<uint8_t>(tiff.inverted ? 255 - v : v);
        break;
      }
      case Mode::integer:
      case Mode::real: out[0] = out[1] = out[2] = number(tiff, row, x, big); break;
      case Mode::rgb:
      case Mode::ycbcr:
      case Mode::cmyk: {
        const size_t size = tiff.bits / 8;
        const size_t high = size == 2 && !big ? 1 : 0;
        const uint8_t* p = row + x * n * size + high;
        if (tiff.mode == Mode::cmyk) {
          const uint8_t cmyk[4] = {p[0], p[size], p[2 * size], p[3 * size]};
          cmyk_to_rgb(cmyk, out);
        } else {
          for (size_t c = 0; c < 3; ++c) {
            out[c] = tiff.premultiplied ? divided_by_alpha(p[c * size], p[3 * size]) : p[c * size];
          }
        }
        break;
      }
    }
  }
}

// Where blocks go: into RGB at once, or, separate planes, into an interleaved copy first.
struct Target {
  const TiffHeader& tiff;
  PixelBuffer& image;
  std::vector<uint8_t>& planes;
  std::vector<uint8_t>& row;
  bool big;
  bool reversed;

  bool separate() const { return tiff.planar == 2 && tiff.samples > 1 && tiff.mode != Mode::ycbcr; }

  void put_row(const uint8_t* from, size_t bytes, size_t x, size_t y, size_t count, size_t plane) {
    if (separate()) {
      uint8_t* to = planes.data() + (y * tiff.width + x) * tiff.samples + plane;
      for (size_t i = 0; i < count; ++i, to += tiff.samples) *to = from[i];
      return;
    }
    if (reversed) {
      row.resize(bytes);
      std::transform(from, from + bytes, row.begin(), reversed_bits);
      from = row.data();
    }
    convert_row(tiff, big, from, 0, count, image.row(static_cast<int>(y)) + x * 3);
  }

  void finish() {
    if (!separate()) return;
    for (size_t y = 0; y < tiff.height; ++y) {
      convert_row(tiff, big, planes.data() + y * tiff.width * tiff.samples, 0, tiff.width,
                  image.row(static_cast<int>(y)));
    }
  }
};

// Uncompressed: Pillow's own raw decoder. Strips that the file lacks stay zero.
SampleStatus copy_blocks(EncodedView bytes, const TiffHeader& tiff, Target& target) {
  const size_t planes = target.separate() ? tiff.samples : 1;
  const size_t bits = target.separate() ? tiff.bits : tiff.pixel_bits();
  const uint64_t across = (tiff.width + tiff.block_width - 1) / tiff.block_width;
  const uint64_t down = (tiff.height + tiff.block_height - 1) / tiff.block_height;
  if (tiff.offsets.count > across * down * planes)
    return SampleStatus::bad("TIFF: more strips or tiles than the image has");
  for (uint64_t i = 0; i < tiff.offsets.count; ++i) {
    const uint64_t plane = i / (across * down);
    const uint64_t x = i % across * tiff.block_width;
    const uint64_t y = i / across % down * tiff.block_height;
    const uint64_t columns = std::min(tiff.block_width, tiff.width - x);
    const uint64_t rows = std::min(tiff.block_height, tiff.height - y);
    const uint64_t row_bytes = (columns * bits + 7) / 8;
    const uint64_t stride = columns == tiff.block_width ? row_bytes : tiff.block_width * bits / 8;
    const uint64_t at = tiff.value(bytes, tiff.offsets, i);
    if (stride < row_bytes) return SampleStatus::bad("TIFF: tiles of a strange width");
    if (at > bytes.size() || bytes.size() - at < stride * (rows - 1) + row_bytes) return truncated();
    const uint8_t* from = raw_bytes(bytes) + at;
    for (uint64_t r = 0; r < rows; ++r, from += stride) {
      target.put_row(from, row_bytes, x, y + r, columns, plane);
    }
  }
  return SampleStatus::good();
}

// libtiff's view of the bytes, and its first complaint.
struct Client {
  EncodedView bytes;
  uint64_t at = 0;
  bool out_of_memory = false;
  char complaint[256] = "";

  static Client& of(thandle_t handle) { return *static_cast<Client*>(handle); }
  static tmsize_t read(thandle_t handle, void* to, tmsize_t size) {
    Client& client = of(handle);
    if (size <= 0 || client.at >= client.bytes.size()) return 0;
    const size_t count = std::min(static_cast<size_t>(size), client.bytes.size() - static_cast<size_t>(client.at));
    std::memcpy(to, client.bytes.data() + client.at, count);
    client.at += count;
    return static_cast<tmsize_t>(count);
  }
  static tmsize_t write(thandle_t, void*, tmsize_t) { return 0; }
  static toff_t seek(thandle_t handle, toff_t offset, int whence) {
    Client& client = of(handle);
    client.at = whence == SEEK_SET ? offset : whence == SEEK_CUR ? client.at + offset : client.bytes.size() + offset;
    return client.at;
  }
  static int close(thandle_t) { return 0; }
  static toff_t size(thandle_t handle) { return of(handle).bytes.size(); }
  static int map(thandle_t handle, void** base, toff_t* size) {
    Client& client = of(handle);
    *base = const_cast<std::byte*>(client.bytes.data());  // opened for reading: libtiff writes nothing there
    *size = client.bytes.size();
    return 1;
  }
  static void unmap(thandle_t, void*, toff_t) {}
  // Not zero: the message goes no further, to the handlers of the process, which print.
  static int on_error(TIFF*, void* user, const char*, const char* format, va_list arguments) {
    Client& client = *static_cast<Client*>(user);
    if (client.complaint[0] == '\0') std::vsnprintf(client.complaint, sizeof client.complaint, format, arguments);
    return 1;
  }
  static int on_warning(TIFF*, void*, const char*, const char*, va_list) { return 1; }
};

struct CloseTiff {
  void operator()(TIFF* file) const noexcept { TIFFClose(file); }
};
struct FreeOptions {
  void operator()(TIFFOpenOptions* options) const noexcept { TIFFOpenOptionsFree(options); }
};

class Library {
 public:
  Library(EncodedView bytes, const TiffHeader& tiff, ColourConversion conversion, std::vector<uint8_t>& block)
      : tiff_(tiff), opencv_(conversion == ColourConversion::opencv), block_(block), client_{bytes} {}

  SampleStatus decode(Target& target) {
    const std::unique_ptr<TIFFOpenOptions, FreeOptions> options(TIFFOpenOptionsAlloc());
    if (options == nullptr) throw Error(ErrorKind::runtime, "out of memory: cannot create a TIFF decoder");
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), Client::on_error, &client_);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), Client::on_warning, &client_);
    TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), memory_limit());
    // C: no chopping of large strips, as Pillow opens it.
    const std::unique_ptr<TIFF, CloseTiff> file(TIFFClientOpenExt("memory", "rC", &client_, Client::read, Client::write,
                                                                  Client::seek, Client::close, Client::size,
                                                                  Client::map, Client::unmap, options.get()));
    if (file == nullptr) return bad("not readable");
    TIFF* const t = file.get();
    uint32_t width = 0;
    uint32_t height = 0;
    TIFFGetField(t, TIFFTAG_IMAGEWIDTH, &width);
    TIFFGetField(t, TIFFTAG_IMAGELENGTH, &height);
    uint16_t compression = 0;
    uint16_t planar = 1;
    uint16_t photometric = 0;
    TIFFGetField(t, TIFFTAG_COMPRESSION, &compression);
    TIFFGetField(t, TIFFTAG_PHOTOMETRIC, &photometric);
    TIFFGetFieldDefaulted(t, TIFFTAG_PLANARCONFIG, &planar);
    const bool ycbcr = photometric == PHOTOMETRIC_YCBCR;
    if (width != tiff_.width || height != tiff_.height || compression != tiff_.compression || planar != tiff_.planar ||
        ycbcr != (tiff_.mode == Mode::ycbcr) || (TIFFIsTiled(t) != 0) != tiff_.tiled) {
      return SampleStatus::bad("TIFF: the headers contradict each other");
    }
    const bool by_jpeg = ycbcr && compression == COMPRESSION_JPEG && planar == PLANARCONFIG_CONTIG;
    if (by_jpeg) TIFFSetField(t, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
    if (opencv_ || (ycbcr && !by_jpeg)) return as_rgba(t, target);
    return tiff_.tiled ? tiles(t, target) : strips(t, target);
  }

 private:
  tmsize_t memory_limit() const {
    return (tmsize_t{64} << 20) + static_cast<tmsize_t>(tiff_.width * tiff_.height * 16);
  }

  SampleStatus bad(const char* fallback) const {
    return SampleStatus::bad(std::string("TIFF: ") + (client_.complaint[0] != '\0' ? client_.complaint : fallback));
  }

  // Zeroed: what a short strip leaves out must not depend on the image before.
  void make_block(tmsize_t bytes) {
    take_large(2 * static_cast<size_t>(bytes));  // the library has one as large
    try {
      block_.assign(static_cast<size_t>(bytes), 0);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorKind::runtime, "out of memory while decoding a TIFF file",
                  "lower loader.threads or the decode limits");
    }
  }

  size_t planes(const Target& target) const { return target.separate() ? tiff_.samples : 1; }

  SampleStatus strips(TIFF* t, Target& target) {
    uint32_t rows_per_strip = 0;
    if (TIFFGetField(t, TIFFTAG_ROWSPERSTRIP, &rows_per_strip) != 1 || rows_per_strip == UINT32_MAX) {
      rows_per_strip = static_cast<uint32_t>(tiff_.height);
    }
    const size_t count = planes(target);
    const auto needed = static_cast<tmsize_t>((tiff_.width * tiff_.pixel_bits() / count + 7) / 8);
    const tmsize_t size = TIFFStripSize(t);
    const tmsize_t row_bytes = TIFFScanlineSize(t);
    if (rows_per_strip == 0 || size <= 0 || size > needed * tmsize_t{rows_per_strip} || size > memory_limit() ||
        row_bytes <= 0 || needed > row_bytes) {
      return bad("strips of a strange size");
    }
    make_block(std::max(size, row_bytes * static_cast<tmsize_t>(std::min<uint64_t>(rows_per_strip, tiff_.height))));
    for (uint64_t y = 0; y < tiff_.height; y += rows_per_strip) {
      for (size_t plane = 0; plane < count; ++plane) {
        const uint32_t strip = TIFFComputeStrip(t, static_cast<uint32_t>(y), static_cast<uint16_t>(plane));
        if (TIFFReadEncodedStrip(t, strip, block_.data(), size) == -1) return bad("broken data");
        const uint64_t rows = std::min<uint64_t>(rows_per_strip, tiff_.height - y);
        for (uint64_t r = 0; r < rows; ++r) {
          target.put_row(block_.data() + r * static_cast<uint64_t>(row_bytes), static_cast<size_t>(needed), 0, y + r,
                         tiff_.width, plane);
        }
      }
    }
    return SampleStatus::good();
  }

  SampleStatus tiles(TIFF* t, Target& target) {
    const size_t count = planes(target);
    const tmsize_t size = TIFFTileSize(t);
    const tmsize_t row_bytes = TIFFTileRowSize(t);
    const uint64_t most = (tiff_.block_height * tiff_.pixel_bits() / count + 7) / 8 * tiff_.block_width;
    const uint64_t needed = (tiff_.block_width * tiff_.pixel_bits() / count + 7) / 8;
    if (size <= 0 || row_bytes <= 0 || row_bytes > size || static_cast<uint64_t>(size) > most ||
        size > memory_limit() || static_cast<uint64_t>(row_bytes) < needed ||
        static_cast<uint64_t>(row_bytes) * tiff_.block_height > static_cast<uint64_t>(size)) {
      return bad("tiles of a strange size");
    }
    make_block(size);
    for (uint64_t y = 0; y < tiff_.height; y += tiff_.block_height) {
      for (size_t plane = 0; plane < count; ++plane) {
        for (uint64_t x = 0; x < tiff_.width; x += tiff_.block_width) {
          if (TIFFReadTile(t, block_.data(), static_cast<uint32_t>(x), static_cast<uint32_t>(y), 0,
                           static_cast<uint16_t>(plane)) == -1) {
            return bad("broken data");
          }
          const uint64_t columns = std::min(tiff_.block_width, tiff_.width - x);
          const uint64_t rows = std::min(tiff_.block_height, tiff_.height - y);
          for (uint64_t r = 0; r < rows; ++r) {
            target.put_row(block_.data() + r * static_cast<uint64_t>(row_bytes), needed, x, y + r, columns, plane);
          }
        }
      }
    }
    return SampleStatus::good();
  }

  // Subsampled colour, and all that OpenCV reads: libtiff's own conversion, strip by strip.
  SampleStatus as_rgba(TIFF* t, Target& target) {
    char complaint[1024] = "";
    TIFFRGBAImage image;
    if (TIFFRGBAImageOK(t, complaint) == 0 || TIFFRGBAImageBegin(&image, t, 0, complaint) == 0) return bad(complaint);
    const std::unique_ptr<TIFFRGBAImage, void (*)(TIFFRGBAImage*)> owner(&image, TIFFRGBAImageEnd);
    image.req_orientation = opencv_ ? image.orientation : uint16_t{ORIENTATION_TOPLEFT};  // turned later
    image.col_offset = 0;
    const uint64_t rows_at_once = std::min(tiff_.block_height, tiff_.height);
    make_block(static_cast<tmsize_t>(rows_at_once * tiff_.width * 4));
    for (uint64_t y = 0; y < tiff_.height; y += rows_at_once) {
      const uint64_t rows = std::min(rows_at_once, tiff_.height - y);
      image.row_offset = static_cast<int>(y);
      if (TIFFRGBAImageGet(&image, reinterpret_cast<uint32_t*>(block_.data()), image.width,
                           static_cast<uint32_t>(rows)) == 0) {
        return bad("broken data");
      }
      for (uint64_t r = 0; r < rows; ++r) {
        const uint8_t* from = block_.data() + r * tiff_.width * 4;
        uint8_t* to = target.image.row(static_cast<int>(y + r));
        for (uint64_t x = 0; x < tiff_.width; ++x, from += 4, to += 3) std::memcpy(to, from, 3);
      }
    }
    return SampleStatus::good();
  }

  const TiffHeader& tiff_;
  bool opencv_;
  std::vector<uint8_t>& block_;
  Client client_;
};

}  // namespace

SampleStatus TiffDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                 PixelView& pixels) {
  TiffHeader tiff;
  SampleStatus status = parse_tiff(bytes, tiff);
  if (!status.ok()) return status;
  if (tiff.width != static_cast<uint64_t>(header.width) || tiff.height != static_cast<uint64_t>(header.height)) {
    return SampleStatus::bad("TIFF: the headers contradict each other");
  }
  if (header.conversion == ColourConversion::opencv && is_number(tiff) && (tiff.bits != 16 || tiff.is_signed)) {
    return SampleStatus::bad("TIFF: of numbers, arithmetic: opencv reads those of 16 bits without a sign");
  }
  const bool raw = tiff.compression == 1 && header.conversion == ColourConversion::pillow;
  storage.resize(header.width, header.height);
  // libtiff gives samples of 16 bits in the machine's order, and bits in the usual one; 32 bits Pillow still takes for
  // the file's order.
  Target target{tiff, storage, planes_, row_, tiff.big_endian && (raw || tiff.bits == 32), tiff.reversed && raw};
  if (target.separate()) {
    take_large(tiff.width * tiff.height * tiff.samples);
    planes_.assign(tiff.width * tiff.height * tiff.samples, 0);
  } else if (raw) {
    const std::vector<uint8_t> zeros(32, 0);
    uint8_t blank[3];
    TiffHeader oriented = tiff;
    oriented.inverted = false;
    convert_row(oriented, false, zeros.data(), 0, 1, blank);
    for (int y = 0; y < header.height; ++y) {
      uint8_t* out = storage.row(y);
      for (int x = 0; x < header.width; ++x, out += 3) std::memcpy(out, blank, 3);
    }
  }
  status = raw ? copy_blocks(bytes, tiff, target) : Library(bytes, tiff, header.conversion, block_).decode(target);
  if (!status.ok()) return status;
  target.finish();
  pixels = view_of_box(storage, box);
  return SampleStatus::good();
}

std::string tiff_library_version() {
  // "LIBTIFF, Version 4.5.0\nCopyright ..."
  const std::string text = TIFFGetVersion();
  const size_t at = text.find("ersion ");
  return "libtiff " +
         (at == std::string::npos ? text.substr(0, text.find('\n')) : text.substr(at + 7, text.find('\n') - at - 7));
}

#else

SampleStatus TiffDecoder::decode(EncodedView, const ImageHeader&, const Box&, PixelBuffer&, PixelView&) {
  return SampleStatus::bad("TIFF support was left out at build time");
}

std::string tiff_library_version() {
  return {};
}

#endif

}  // namespace penstock
