#include "runtime/decode/jpeg/coefficient_tiles.h"
#include "runtime/decode/jpeg/jpeg_kernels.h"
#include "runtime/decode/jpeg/jpeg_math.h"

namespace penstock::reference {
namespace {

template <class Transform>
void for_each_block(const int16_t* tiles, size_t count, const Transform& transform) {
  for (size_t i = 0; i < count * kBlocksPerTile; ++i) {
    const int16_t* const from = tiles + tile_block_begin(i);
    int16_t block[64];
    for (size_t place = 0; place < 64; ++place) block[place] = from[tile_offset(place)];
    transform(i, block);
  }
}

}  // namespace

void idct_tiles(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  for_each_block(tiles, count, [&](size_t i, const int16_t* block) {
    idct_block(block, quant, out + 8 * i, static_cast<long>(out_stride));
  });
}

void idct_tiles_4x4(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  for_each_block(tiles, count, [&](size_t i, const int16_t* block) {
    idct_block_4x4(block, quant, out + 4 * i, static_cast<long>(out_stride));
  });
}

void idct_tiles_2x2(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out, size_t out_stride) {
  for_each_block(tiles, count, [&](size_t i, const int16_t* block) {
    idct_block_2x2(block, quant, out + 2 * i, static_cast<long>(out_stride));
  });
}

void idct_tiles_1x1(const int16_t* tiles, size_t count, const uint16_t* quant, uint8_t* out) {
  for (size_t i = 0; i < count * kBlocksPerTile; ++i) {
    out[i] = idct_block_1x1(tiles[tile_block_begin(i)], quant[0]);
  }
}

void upsample_2x1(const uint8_t* in, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i, ++in) {
    out[2 * i] = upsample_left(in[0], in[-1]);
    out[2 * i + 1] = upsample_right(in[0], in[1]);
  }
}

void upsample_2x2(const uint8_t* near, const uint8_t* far, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i, ++near, ++far) {
    const int sum = 3 * near[0] + far[0];
    out[2 * i] = upsample_left_of_sums(sum, 3 * near[-1] + far[-1]);
    out[2 * i + 1] = upsample_right_of_sums(sum, 3 * near[1] + far[1]);
  }
}

void upsample_1x2(const uint8_t* near, const uint8_t* far, int bias, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = upsample_down(near[i], far[i], bias);
}

void ycc_row_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, uint8_t* rgb) {
  for (size_t i = 0; i < count; ++i) ycc_to_rgb(y[i], cb[i], cr[i], rgb + 3 * i);
}

void ycc_row_to_planes(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, size_t count, const PlanarRow& to) {
  for (size_t i = 0; i < count; ++i) {
    uint8_t rgb[3];
    ycc_to_rgb(y[i], cb[i], cr[i], rgb);
    to.red[i] = rgb[0];
    to.green[i] = rgb[1];
    to.blue[i] = rgb[2];
  }
}

void grey_row_to_rgb(const uint8_t* grey, size_t count, uint8_t* rgb) {
  for (size_t i = 0; i < count; ++i) rgb[3 * i] = rgb[3 * i + 1] = rgb[3 * i + 2] = grey[i];
}

}  // namespace penstock::reference
