// Our decoder of JPEG files against libjpeg-turbo's plain way, and what to compare them on.
//
//   Comparison comparison;
//   REQUIRE(comparison.compare(make_jpeg({.width = 40}), random_box(random, 40, 33)) == Comparison::Result::good);
//   comparison.counts().own_jpeg                                  // how many of them were ours
#pragma once

#include <doctest/doctest.h>

#include <hwy/highway.h>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runtime/decode/decoder.h"
#include "runtime/decode/jpeg/jpeg_decoder.h"
#include "tests/decode/jpeg_damage.h"
#include "tests/decode/jpeg_files.h"

namespace penstock_test {

using namespace penstock;
using File = std::vector<std::byte>;

inline Box random_box(std::mt19937& random, int width, int height) {
  const int w = draw(random, 1, width);
  const int h = draw(random, 1, height);
  return {draw(random, 0, width - w), draw(random, 0, height - h), w, h};
}

// Rows as they come, interleaved again.
class KeptRows final : public RowSink {
 public:
  void begin(const Box& box) {
    width_ = static_cast<size_t>(box.width);
    stride_ = width_ + kRowSinkPadding;
    planes_.resize(3 * stride_ * static_cast<size_t>(box.height));
    count_ = 0;
  }
  PlanarRow row(int y) override {
    REQUIRE((y == count_ || y == 0));
    count_ = y + 1;
    uint8_t* const at = planes_.data() + 3 * stride_ * static_cast<size_t>(y);
    return {at, at + stride_, at + 2 * stride_};
  }
  int count() const { return count_; }
  bool equal(int y, const uint8_t* rgb) const {
    const uint8_t* const at = planes_.data() + 3 * stride_ * static_cast<size_t>(y);
    for (size_t i = 0; i < 3 * width_; ++i) {
      if (rgb[i] != at[i % 3 * stride_ + i / 3]) return false;
    }
    return true;
  }

 private:
  size_t width_ = 0;
  size_t stride_ = 0;
  int count_ = 0;
  std::vector<uint8_t> planes_;
};

// The own way, to memory and row by row, against the reference: same status, same bytes.
class Comparison {
 public:
  enum class Result { refused, good, bad };

  // At 1/reduction of the size, whose pixels the box counts.
  Result compare(const File& file, const Box& box, const ImageHeader& header, int reduction = 1,
                 const SideIndex* index = nullptr) {
    PixelView got;
    PixelView wanted;
    const SampleStatus own =
        own_.decode(file, header, box, got_storage_, got, {.index = index, .reduction = reduction});
    const SampleStatus reference = reference_.decode_reference(file, header, box, wanted_storage_, wanted, reduction);
    REQUIRE(own.ok() == reference.ok());
    REQUIRE(own.reason == reference.reason);
    if (!own.ok()) return Result::bad;
    REQUIRE(got.width == box.width);
    REQUIRE(got.height == box.height);
    for (int y = 0; y < box.height; ++y) {
      const auto bytes = static_cast<size_t>(box.width) * 3;
      REQUIRE(std::memcmp(got.row(y), wanted.row(y), bytes) == 0);
    }
    compare_rows(file, box, header, reduction, index, wanted);
    return Result::good;
  }
  Result compare(const File& file, const Box& box) {
    ImageHeader header;
    REQUIRE(read_header(file, {}, header).ok());
    return compare(file, box, header);
  }
  const DecodeCounts& counts() const { return own_.counts(); }

 private:
  void compare_rows(const File& file, const Box& box, const ImageHeader& header, int reduction, const SideIndex* index,
                    const PixelView& wanted) {
    PixelView got;
    rows_.begin(box);
    const DecodeOptions decode_options{.index = index, .reduction = reduction, .rows = &rows_};
    REQUIRE(by_rows_.decode(file, header, box, got_storage_, got, decode_options).ok());
    if (got.data != nullptr) return;  // libjpeg-turbo's
    REQUIRE(rows_.count() == box.height);
    for (int y = 0; y < box.height; ++y) REQUIRE(rows_.equal(y, wanted.row(y)));
  }

  JpegDecoder own_{DecodeLimits{}};
  JpegDecoder by_rows_{DecodeLimits{}};
  JpegDecoder reference_{DecodeLimits{}, DecoderOptions{.own_jpeg = false}};
  KeptRows rows_;
  PixelBuffer got_storage_;
  PixelBuffer wanted_storage_;
};

// A file with the given coefficients in every block, and quantisers as large as eight bits allow.
inline File make_from_coefficients(std::mt19937& random, bool extreme, bool progressive = false) {
  const File base = make_jpeg({.width = 37, .height = 29, .h = draw(random, 1, 2), .v = draw(random, 1, 2)});
  jpeg_decompress_struct in;
  jpeg_compress_struct out;
  jpeg_error_mgr errors;
  in.err = out.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&in);
  jpeg_create_compress(&out);
  jpeg_mem_src(&in, reinterpret_cast<const unsigned char*>(base.data()), base.size());
  jpeg_read_header(&in, TRUE);
  jvirt_barray_ptr* const arrays = jpeg_read_coefficients(&in);
  const int limit = extreme ? 1023 : draw(random, 1, 300);
  const int sparse = draw(random, 1, 12);
  for (int c = 0; c < in.num_components; ++c) {
    for (JDIMENSION row = 0; row < in.comp_info[c].height_in_blocks; ++row) {
      JBLOCKARRAY blocks = in.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&in), arrays[c], row, 1, TRUE);
      for (JDIMENSION column = 0; column < in.comp_info[c].width_in_blocks; ++column) {
        for (int k = 0; k < DCTSIZE2; ++k) {
          blocks[0][column][k] =
              static_cast<JCOEF>(k == 0 || draw(random, 1, sparse) == 1 ? draw(random, -limit, limit) : 0);
        }
      }
    }
  }
  for (JQUANT_TBL* table : in.quant_tbl_ptrs) {
    if (table == nullptr) continue;
    for (auto& q : table->quantval) q = static_cast<UINT16>(extreme ? draw(random, 1, 255) : draw(random, 1, 16));
  }
  for (int c = 0; c < in.num_components; ++c) {  // libjpeg compares them with the copies that decoding took
    *in.comp_info[c].quant_table = *in.quant_tbl_ptrs[in.comp_info[c].quant_tbl_no];
  }
  jpeg_copy_critical_parameters(&in, &out);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&out, &bytes, &size);
  out.optimize_coding = TRUE;
  if (progressive) jpeg_simple_progression(&out);
  jpeg_write_coefficients(&out, arrays);
  jpeg_finish_compress(&out);
  File file(size);
  std::memcpy(file.data(), bytes, size);
  jpeg_destroy_compress(&out);
  jpeg_destroy_decompress(&in);
  std::free(bytes);
  return file;
}

inline void damage(std::mt19937& random, File& file) {
  const size_t from = random() % 3 == 0 ? 2 : file.size() / 2;  // mostly the entropy-coded part
  for (unsigned n = 1 + random() % 3; n > 0 && file.size() > 100; --n) {
    const size_t at = from + random() % (file.size() - from);
    const unsigned kind = random() % kKindsOfDamage;
    const bool restart = kind == 4 && random() % 2 == 0;
    damage_at(file, at, kind, static_cast<std::byte>(restart ? 0xD0 + random() % 10 : random() & 255));
    if (from >= file.size()) break;
  }
}

// Runs `body` on every target that this CPU has.
template <class Body>
void on_every_target(Body body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    INFO("target ", hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace penstock_test
