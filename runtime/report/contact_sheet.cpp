#include "runtime/report/contact_sheet.h"

#include <spng.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"

namespace penstock {
namespace {

constexpr uint8_t kBackground = 32;

struct Grid {
  int64_t columns;
  int64_t rows;
  int64_t shrink;      // pixels of an image that become one
  int64_t cell_width;  // after shrinking
  int64_t cell_height;
  int64_t width;  // of the sheet
  int64_t height;
};

Grid plan_grid(int64_t count, int64_t width, int64_t height, const ContactSheetOptions& options) {
  Grid grid{};
  const int64_t gap = std::max(options.gap, 0);
  grid.columns = options.columns;
  if (grid.columns <= 0) {
    grid.columns = 1;
    while (grid.columns * width < (count + grid.columns - 1) / grid.columns * height) ++grid.columns;
  }
  grid.columns = std::min(grid.columns, count);
  grid.rows = (count + grid.columns - 1) / grid.columns;
  for (grid.shrink = 1;; ++grid.shrink) {
    grid.cell_width = std::max<int64_t>(width / grid.shrink, 1);
    grid.cell_height = std::max<int64_t>(height / grid.shrink, 1);
    grid.width = gap + grid.columns * (grid.cell_width + gap);
    grid.height = gap + grid.rows * (grid.cell_height + gap);
    const bool fits = std::max(grid.width, grid.height) <= options.max_side;
    // So many images that even single pixels do not fit: the sheet is then as large as it must be.
    if (fits || (grid.cell_width == 1 && grid.cell_height == 1)) return grid;
  }
}

}  // namespace

std::vector<std::byte> encode_png(const uint8_t* rgb, int width, int height) {
  struct Free {
    void operator()(spng_ctx* context) const noexcept { spng_ctx_free(context); }
  };
  const auto check = [](int code, const char* step) {
    if (code != 0) {
      throw Error(ErrorKind::runtime, std::string("cannot encode a PNG (") + step + "): " + spng_strerror(code));
    }
  };
  const std::unique_ptr<spng_ctx, Free> context(spng_ctx_new(SPNG_CTX_ENCODER));
  if (!context) throw Error(ErrorKind::runtime, "out of memory: cannot encode a PNG");
  check(spng_set_option(context.get(), SPNG_ENCODE_TO_BUFFER, 1), "options");
  check(spng_set_option(context.get(), SPNG_IMG_COMPRESSION_LEVEL, 3), "options");
  spng_ihdr header{};
  header.width = static_cast<uint32_t>(width);
  header.height = static_cast<uint32_t>(height);
  header.bit_depth = 8;
  header.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  check(spng_set_ihdr(context.get(), &header), "header");
  const size_t bytes = static_cast<size_t>(width) * static_cast<size_t>(height) * 3;
  check(spng_encode_image(context.get(), rgb, bytes, SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE), "pixels");
  size_t size = 0;
  int code = 0;
  const std::unique_ptr<void, decltype(&std::free)> png(spng_get_png_buffer(context.get(), &size, &code), &std::free);
  check(code, "file");
  const auto* first = static_cast<const std::byte*>(png.get());
  return {first, first + size};
}

void write_contact_sheet(const std::string& path, const TensorView& images, const ContactSheetOptions& options) {
  const auto& shape = images.shape;
  if (images.dtype != DType::uint8 || shape.size() != 4 || images.strides.size() != 4 || shape[1] != 3 ||
      images.elements() <= 0) {
    throw Error(ErrorKind::usage,
                "cannot make the contact sheet '" + path + "': it takes one or more uint8 images, [n, 3, h, w]",
                "give the pixels as they are before finishing");
  }
  const Grid grid = plan_grid(shape[0], shape[3], shape[2], options);
  const int64_t gap = std::max(options.gap, 0);
  std::vector<uint8_t> sheet(static_cast<size_t>(grid.width * grid.height * 3), kBackground);
  const auto* pixels = static_cast<const uint8_t*>(images.data);
  for (int64_t n = 0; n < shape[0]; ++n) {
    const int64_t left = gap + n % grid.columns * (grid.cell_width + gap);
    const int64_t top = gap + n / grid.columns * (grid.cell_height + gap);
    for (int64_t y = 0; y < grid.cell_height; ++y) {
      uint8_t* out = sheet.data() + ((top + y) * grid.width + left) * 3;
      for (int64_t x = 0; x < grid.cell_width; ++x) {
        const int64_t y_end = std::min((y + 1) * grid.shrink, shape[2]);
        const int64_t x_end = std::min((x + 1) * grid.shrink, shape[3]);
        for (int64_t channel = 0; channel < 3; ++channel) {
          int64_t sum = 0;
          int64_t count = 0;
          for (int64_t v = y * grid.shrink; v < y_end; ++v) {
            for (int64_t u = x * grid.shrink; u < x_end; ++u, ++count) {
              sum += pixels[n * images.strides[0] + channel * images.strides[1] + v * images.strides[2] +
                            u * images.strides[3]];
            }
          }
          *out++ = static_cast<uint8_t>((sum + count / 2) / count);
        }
      }
    }
  }
  const std::vector<std::byte> png =
      encode_png(sheet.data(), static_cast<int>(grid.width), static_cast<int>(grid.height));
  write_file(path, {png});
}

}  // namespace penstock
