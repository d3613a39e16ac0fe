#include "launch/jpeg_rewrite.h"

// jpeglib.h needs size_t and FILE declared before it.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>
// After jpeglib.h, which it needs.
#include <jerror.h>

#include <cstring>

#include "runtime/base/error.h"

namespace penstock {
namespace {

// Errors leave by longjmp, so all that lives across it is plain data, and this frees it.
class Rewriter {
 public:
  Rewriter() {
    in_.err = jpeg_std_error(&errors_.manager);
    out_.err = in_.err;
    errors_.manager.error_exit = [](j_common_ptr info) {
      auto& errors = *reinterpret_cast<Errors*>(info->err);
      info->err->format_message(info, errors.text);
      errors.out_of_memory = info->err->msg_code == JERR_OUT_OF_MEMORY;
      std::longjmp(errors.back, 1);
    };
    errors_.manager.output_message = [](j_common_ptr) {};
  }
  ~Rewriter() {
    jpeg_destroy_compress(&out_);
    jpeg_destroy_decompress(&in_);
    std::free(bytes_);
  }
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  // Null: it is done.
  const char* run(EncodedView file) {
    if (setjmp(errors_.back) != 0) {
      if (errors_.out_of_memory) throw Error(ErrorKind::runtime, "out of memory while a JPEG file was rewritten");
      return errors_.text;
    }
    jpeg_create_decompress(&in_);
    jpeg_create_compress(&out_);
    jpeg_save_markers(&in_, JPEG_COM, 0xFFFF);
    for (int n = 0; n < 16; ++n) jpeg_save_markers(&in_, JPEG_APP0 + n, 0xFFFF);
    jpeg_mem_src(&in_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&in_, TRUE);
    if (in_.arith_code != 0) return "arithmetic coding";
    if (in_.data_precision != 8) return "not 8 bits";
    if (in_.num_components != 1 && in_.num_components != 3) return "neither grey nor three components";
    jvirt_barray_ptr* const coefficients = jpeg_read_coefficients(&in_);
    if (in_.err->num_warnings != 0) return "libjpeg warns of it";
    if (in_.src->bytes_in_buffer != 0) return "there is more behind its end";
    progressive_ = in_.progressive_mode != 0;
    for (int c = 0; c < in_.num_components; ++c) {
      if (const char* why = odd_component(c, coefficients[c])) return why;
    }
    jpeg_mem_dest(&out_, &bytes_, &size_);
    jpeg_copy_critical_parameters(&in_, &out_);
    out_.optimize_coding = TRUE;
    // The file's own are among the segments kept; the library's might say otherwise.
    out_.write_JFIF_header = FALSE;
    out_.write_Adobe_marker = FALSE;
    jpeg_write_coefficients(&out_, coefficients);
    for (jpeg_saved_marker_ptr marker = in_.marker_list; marker != nullptr; marker = marker->next) {
      if (marker->data_length != marker->original_length) return "a segment that is too long";
      jpeg_write_marker(&out_, marker->marker, marker->data, marker->data_length);
    }
    jpeg_finish_compress(&out_);
    jpeg_finish_decompress(&in_);
    if (in_.err->num_warnings != 0) return "libjpeg warns of it";
    return nullptr;
  }

  bool progressive() const { return progressive_; }
  EncodedView bytes() const { return {reinterpret_cast<const std::byte*>(bytes_), size_}; }

 private:
  struct Errors {
    jpeg_error_mgr manager;  // first: libjpeg hands a pointer to it back
    std::jmp_buf back;
    bool out_of_memory;
    char text[JMSG_LENGTH_MAX];
  };

  const char* odd_component(int c, jvirt_barray_ptr blocks) {
    const jpeg_component_info& component = in_.comp_info[c];
    if (component.quant_table == nullptr) return "a component without a quantisation table";
    for (const UINT16 step : component.quant_table->quantval) {
      if (step < 1 || step > 255) return "a quantisation table that baseline JPEG cannot have";
    }
    if (progressive_) {
      if (in_.coef_bits == nullptr) return "no account of its progression";
      for (int k = 0; k < DCTSIZE2; ++k) {
        if (in_.coef_bits[c][k] != 0) return "its progression is not complete";
      }
    }
    for (JDIMENSION y = 0; y < component.height_in_blocks; ++y) {
      JBLOCKARRAY row = (*in_.mem->access_virt_barray)(reinterpret_cast<j_common_ptr>(&in_), blocks, y, 1, FALSE);
      for (JDIMENSION x = 0; x < component.width_in_blocks; ++x) {
        const JCOEF* block = row[0][x];
        if (block[0] < -1024 || block[0] > 1023) return "a coefficient that 8-bit JPEG cannot have";
        for (int k = 1; k < DCTSIZE2; ++k) {
          if (block[k] < -1023 || block[k] > 1023) return "a coefficient that 8-bit JPEG cannot have";
        }
      }
    }
    return nullptr;
  }

  jpeg_decompress_struct in_{};
  jpeg_compress_struct out_{};
  Errors errors_{};
  unsigned char* bytes_ = nullptr;
  unsigned long size_ = 0;
  bool progressive_ = false;
};

}  // namespace

std::string rewrite_jpeg(EncodedView file, std::vector<std::byte>& fresh) {
  fresh.clear();
  Rewriter rewriter;
  if (const char* why = rewriter.run(file)) return why;
  if (!rewriter.progressive() && rewriter.bytes().size() >= file.size()) return "it would not become smaller";
  fresh.assign(rewriter.bytes().begin(), rewriter.bytes().end());
  return {};
}

}  // namespace penstock
