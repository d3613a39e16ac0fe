#include "runtime/decode/jpeg/jpeg_round_trip.h"

#include <csetjmp>
#include <cstdio>
#include <new>

#include <jpeglib.h>
// After jpeglib.h, which it needs.
#include <jerror.h>

#include <algorithm>
#include <string>

#include "runtime/base/error.h"

namespace penstock {
namespace {

static_assert(kLargestJpegSide == JPEG_MAX_DIMENSION);

// Errors leave by longjmp, so no object with a destructor lives between setjmp and a call of the library.
struct RoundTripErrors {
  jpeg_error_mgr manager;  // first: libjpeg hands a pointer to it back
  std::jmp_buf leave;
  char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave_round_trip(j_common_ptr info) {
  auto& errors = *reinterpret_cast<RoundTripErrors*>(info->err);
  errors.manager.format_message(info, errors.text);
  std::longjmp(errors.leave, 1);
}

void print_nothing(j_common_ptr) {}

jpeg_error_mgr* prepare(RoundTripErrors& errors) {
  jpeg_error_mgr* manager = jpeg_std_error(&errors.manager);
  manager->error_exit = leave_round_trip;
  manager->output_message = print_nothing;
  return manager;
}

// Writes to a vector that grows.
struct FileDestination {
  jpeg_destination_mgr manager;  // first, as above
  std::vector<std::byte>* file;

  void offer(size_t used) {
    manager.next_output_byte = reinterpret_cast<JOCTET*>(file->data()) + used;
    manager.free_in_buffer = file->size() - used;
  }
};

FileDestination& destination_of(j_compress_ptr info) {
  return *reinterpret_cast<FileDestination*>(info->dest);
}

void begin_file(j_compress_ptr info) {
  destination_of(info).offer(0);
}

boolean grow_file(j_compress_ptr info) {
  FileDestination& to = destination_of(info);
  const size_t used = to.file->size();
  bool grown = true;
  try {
    to.file->resize(2 * used);
  } catch (const std::bad_alloc&) {
    grown = false;
  }
  if (!grown) ERREXIT1(info, JERR_OUT_OF_MEMORY, 0);
  to.offer(used);
  return TRUE;
}

void end_file(j_compress_ptr) {}

bool encode(PixelBuffer& image, int quality, jpeg_compress_struct& info, FileDestination& to, RoundTripErrors& errors) {
  info.err = prepare(errors);
  if (setjmp(errors.leave) != 0) return false;
  jpeg_create_compress(&info);
  info.dest = &to.manager;
  info.image_width = static_cast<JDIMENSION>(image.width());
  info.image_height = static_cast<JDIMENSION>(image.height());
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = image.row(static_cast<int>(info.next_scanline));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

bool decode(const std::byte* file, size_t bytes, PixelBuffer& image, jpeg_decompress_struct& info,
            RoundTripErrors& errors) {
  info.err = prepare(errors);
  if (setjmp(errors.leave) != 0) return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file),
               static_cast<unsigned long>(bytes));  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_read_header(&info, TRUE);
  info.out_color_space = JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = image.row(static_cast<int>(info.output_scanline));
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

[[noreturn]] void round_trip_failed(const RoundTripErrors& errors) {
  throw Error(ErrorKind::runtime, std::string("JPEG, encoding an image and decoding it: ") + errors.text,
              "lower loader.threads or the decode limits");
}

}  // namespace

void jpeg_round_trip(PixelBuffer& image, int quality, std::vector<std::byte>& file) {
  if (std::max(image.width(), image.height()) > kLargestJpegSide) {
    throw Error(ErrorKind::usage, "an image of " + std::to_string(image.width()) + " x " +
                                      std::to_string(image.height()) + " is too large for JPEG");
  }
  // A byte a pixel is more than most files take.
  file.resize(std::max(file.size(), static_cast<size_t>(image.width()) * static_cast<size_t>(image.height()) + 1024));
  RoundTripErrors errors{};
  jpeg_compress_struct compress{};
  FileDestination to{{}, &file};
  to.manager.init_destination = begin_file;
  to.manager.empty_output_buffer = grow_file;
  to.manager.term_destination = end_file;
  const bool encoded = encode(image, quality, compress, to, errors);
  jpeg_destroy_compress(&compress);
  if (!encoded) round_trip_failed(errors);
  jpeg_decompress_struct decompress{};
  const bool decoded = decode(file.data(), file.size() - to.manager.free_in_buffer, image, decompress, errors);
  jpeg_destroy_decompress(&decompress);
  if (!decoded) round_trip_failed(errors);
}

}  // namespace penstock
