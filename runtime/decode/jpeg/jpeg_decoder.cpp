#include "runtime/decode/jpeg/jpeg_decoder.h"

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>
// After jpeglib.h, which it needs.
#include <jerror.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/take_large.h"
#include "runtime/decode/color_math.h"
#include "runtime/decode/jpeg/own_jpeg_decoder.h"
#include "runtime/decode/jpeg/sample_grid.h"

namespace penstock {
namespace {

// What libjpeg's callbacks know. Errors leave by longjmp, so everything between setjmp and here is plain data.
struct ErrorState {
  jpeg_error_mgr manager;  // first: libjpeg hands a pointer to it back
  jpeg_progress_mgr progress;
  std::jmp_buf escape;
  long max_warnings;
  int max_scans;
  bool tolerant;  // the status is known to be good: no warning ends the decoding
  bool out_of_memory;
  char text[JMSG_LENGTH_MAX + 64];
};

ErrorState& state_of(j_common_ptr info) {
  return *reinterpret_cast<ErrorState*>(info->err);
}

[[noreturn]] void escape(j_common_ptr info) {
  ErrorState& state = state_of(info);
  std::longjmp(state.escape, 1);
}

[[noreturn]] void on_error(j_common_ptr info) {
  ErrorState& state = state_of(info);
  state.out_of_memory = state.manager.msg_code == JERR_OUT_OF_MEMORY;
  char message[JMSG_LENGTH_MAX];
  state.manager.format_message(info, message);
  std::snprintf(state.text, sizeof state.text, "JPEG: %s", message);
  escape(info);
}

void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace message
  ErrorState& state = state_of(info);
  ++state.manager.num_warnings;
  if (state.tolerant) return;
  if (state.manager.msg_code == JWRN_JPEG_EOF) {
    std::snprintf(state.text, sizeof state.text, "JPEG: premature end of the data (truncated file)");
    escape(info);
  }
  if (state.manager.num_warnings > state.max_warnings) {
    std::snprintf(state.text, sizeof state.text, "JPEG: over %ld warnings of damaged data", state.max_warnings);
    escape(info);
  }
}

void on_output(j_common_ptr) {}  // libraries do not print

// Called between pieces of work: the place to stop a file of very many scans before it costs anything.
void on_progress(j_common_ptr info) {
  ErrorState& state = state_of(info);
  const auto* decompress = reinterpret_cast<j_decompress_ptr>(info);
  if (decompress->input_scan_number > state.max_scans) {
    std::snprintf(state.text, sizeof state.text, "JPEG: over the limit of %d scans (limits.max_scans)",
                  state.max_scans);
    escape(info);
  }
}

enum class Outcome { done, bad, start_over };

// What the library is made to do (jpeg_decoder.h).
enum class LibraryMode {
  region,     // only what the box needs; starts over at anything irregular
  reference,  // rows 0 to the box's last
  // the same and beyond, to where the judged rows cannot give a warning either; starts over at anything irregular
  no_warnings,
  judge,     // rows 0 to the last that is judged, and no pixels
  tolerant,  // rows 0 to the box's last, whatever they say
};

struct Task {
  LibraryMode mode = LibraryMode::reference;
  int reduction = 1;
  Box box;              // whose pixels are wanted, of the reduced image; of no height: none
  int judged_rows = 0;  // of the image at full size, from row 0 on

  bool strict() const noexcept { return mode == LibraryMode::region || mode == LibraryMode::no_warnings; }
};

}  // namespace

class JpegDecoder::Impl {
 public:
  Impl(const DecodeLimits& limits, const DecoderOptions& options)
      // A limit that refuses every file is libjpeg's to enforce.
      : own_allowed_(options.own_jpeg && limits.max_scans >= 1 && limits.max_warnings >= 0),
        own_(limits.max_scans, options.learned_interval) {
    errors_.max_warnings = limits.max_warnings;
    errors_.max_scans = limits.max_scans;
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_error;
    errors_.manager.emit_message = on_message;
    errors_.manager.output_message = on_output;
    errors_.progress.progress_monitor = on_progress;
  }
  ~Impl() { jpeg_destroy_decompress(&info_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The choice of the mode stands here and nowhere else.
  SampleStatus decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                      PixelView& pixels, const DecodeOptions& decode_options) {
    if (own_allowed_ && own_.decode(bytes, header, box, decode_options, storage, pixels)) {
      if (decode_options.learned != nullptr) {
        if (SideIndex more = own_.learned(decode_options.index); !more.empty())
          *decode_options.learned = std::move(more);
      }
      ++counts.own_jpeg;
      if (own_.used_index()) ++counts.indexed_jpeg;
      return SampleStatus::good();
    }
    ++counts.library_jpeg;
    if (decode_options.judges()) return decode_judged(bytes, header, box, decode_options, storage, pixels);
    const bool covers_rows = box.x == 0 && box.y == 0 && box.width == header.width;
    Task task{.mode = LibraryMode::region, .reduction = decode_options.reduction, .box = box};
    if (covers_rows || decode_options.reduction > 1) task.mode = LibraryMode::reference;
    Outcome outcome = attempt(bytes, header, task, storage, pixels);
    task.mode = LibraryMode::reference;
    if (outcome == Outcome::start_over) outcome = attempt(bytes, header, task, storage, pixels);
    return status_of(outcome);
  }

  SampleStatus decode_reference(EncodedView bytes, const ImageHeader& header, const Box& box, int reduction,
                                PixelBuffer& storage, PixelView& pixels) {
    ++counts.library_jpeg;
    return status_of(attempt(bytes, header, {.reduction = reduction, .box = box}, storage, pixels));
  }

  DecodeCounts counts;

 private:
  // The pixels of a scaled decode, with the status of full size.
  SampleStatus decode_judged(EncodedView bytes, const ImageHeader& header, const Box& box,
                             const DecodeOptions& decode_options, PixelBuffer& storage, PixelView& pixels) {
    const int rows = decode_options.judged.y + decode_options.judged.height;
    Task task{.mode = LibraryMode::no_warnings, .reduction = decode_options.reduction, .box = box, .judged_rows = rows};
    Outcome outcome = attempt(bytes, header, task, storage, pixels);
    if (outcome != Outcome::start_over) return status_of(outcome);
    outcome = attempt(bytes, header, {.mode = LibraryMode::judge, .judged_rows = rows}, storage, pixels);
    if (outcome != Outcome::done) return status_of(outcome);
    task.mode = LibraryMode::tolerant;
    return status_of(attempt(bytes, header, task, storage, pixels));
  }

  SampleStatus status_of(Outcome outcome) const {
    if (outcome == Outcome::done) return SampleStatus::good();
    if (errors_.out_of_memory) {
      throw Error(ErrorKind::runtime, std::string("out of memory while decoding: ") + errors_.text,
                  "lower loader.threads or the decode limits");
    }
    return SampleStatus::bad(errors_.text);
  }

  // No object with a destructor may live between setjmp and a libjpeg call: hence members and plain pointers.
  Outcome attempt(EncodedView bytes, const ImageHeader& header, const Task& task, PixelBuffer& storage,
                  PixelView& pixels) {
    errors_.tolerant = task.mode == LibraryMode::tolerant;
    errors_.manager.num_warnings = 0;
    errors_.out_of_memory = false;
    errors_.text[0] = '\0';
    volatile bool header_read = false;
    if (setjmp(errors_.escape) != 0) {
      jpeg_abort_decompress(&info_);
      // The reference decides about everything that went wrong in the image itself.
      return task.strict() && header_read ? Outcome::start_over : Outcome::bad;
    }
    // A fresh object for every file: an old one remembers the tables of the file before, and a damaged file without
    // tables of its own would decode, or not, by what came before it. Costs a microsecond or two.
    jpeg_destroy_decompress(&info_);
    jpeg_create_decompress(&info_);
    info_.progress = &errors_.progress;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes.data()),
                 static_cast<unsigned long>(bytes.size()));  // NOLINT(google-runtime-int): libjpeg's type
    jpeg_read_header(&info_, TRUE);
    if (static_cast<int>(info_.image_width) != header.width || static_cast<int>(info_.image_height) != header.height) {
      return fail("JPEG: the headers contradict each other");
    }
    if (!choose_colours(task.reduction)) return fail("JPEG: a colour space that cannot become RGB");
    const long warnings_of_header = errors_.manager.num_warnings;  // NOLINT(google-runtime-int): libjpeg's type
    header_read = true;
    if (jpeg_has_multiple_scans(&info_) != 0) take_large(coefficient_bytes());
    jpeg_start_decompress(&info_);
    const bool region = task.mode == LibraryMode::region;
    if (task.strict() && (errors_.manager.num_warnings != warnings_of_header || (region && smooths_blocks()))) {
      jpeg_abort_decompress(&info_);
      return Outcome::start_over;
    }
    JDIMENSION left = 0;
    if (region) {
      left = crop_columns(task.box);
      if (task.box.y > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(task.box.y));
    }
    line_.resize((static_cast<size_t>(info_.output_width) + 16) * 4);
    if (task.box.height > 0) read_rows(task.box, static_cast<int>(left), header.conversion, storage, pixels);
    pass_to(last_row_of(task, header));
    const bool irregular = errors_.manager.num_warnings != warnings_of_header;
    jpeg_abort_decompress(&info_);
    return irregular && task.strict() ? Outcome::start_over : Outcome::done;
  }

  Outcome fail(const char* text) {
    std::snprintf(errors_.text, sizeof errors_.text, "%s", text);
    jpeg_abort_decompress(&info_);
    return Outcome::bad;
  }

  // What the library holds of a file whose scans have parts of all blocks.
  size_t coefficient_bytes() const {
    size_t blocks = 0;
    for (int c = 0; c < info_.num_components; ++c) {
      const jpeg_component_info& component = info_.comp_info[c];
      blocks += static_cast<size_t>(component.width_in_blocks) * component.height_in_blocks;
    }
    return blocks * sizeof(JBLOCK);
  }

  // What Pillow asks for: grey stays grey, three components become RGB, four CMYK (which then becomes RGB).
  bool choose_colours(int reduction) {
    switch (info_.num_components) {
      case 1:
        info_.out_color_space = JCS_RGB;  // libjpeg replicates grey
        break;
      case 3: info_.out_color_space = JCS_RGB; break;
      case 4: info_.out_color_space = JCS_CMYK; break;
      default: return false;
    }
    info_.scale_num = 1;
    info_.scale_denom = static_cast<unsigned>(reduction);
    info_.dct_method = JDCT_ISLOW;
    info_.do_fancy_upsampling = TRUE;
    info_.do_block_smoothing = TRUE;
    return true;
  }

  // Block smoothing runs where a progressive file ended before its coefficients were complete. It looks two blocks
  // around, beyond our margin. Any incomplete low coefficient counts here; libjpeg's own rule is narrower.
  bool smooths_blocks() const {
    if (info_.progressive_mode == 0 || info_.coef_bits == nullptr) return false;
    for (int c = 0; c < info_.num_components; ++c) {
      for (int k = 0; k < 10; ++k) {
        if (info_.coef_bits[c][k] != 0) return true;
      }
    }
    return false;
  }

  JDIMENSION crop_columns(const Box& box) {
    const int imcu = info_.max_h_samp_factor * DCTSIZE;
    const int width = static_cast<int>(info_.output_width);
    const int from = std::max(0, box.x - imcu);
    const int to = std::min(width, box.x + box.width + imcu);
    if (from / imcu == 0 && to == width) return 0;
    auto left = static_cast<JDIMENSION>(from);
    auto count = static_cast<JDIMENSION>(to - from);
    jpeg_crop_scanline(&info_, &left, &count);
    return left;
  }

  // The rows that say what the status is, beyond the box's. Interpolation of chroma at full size takes libjpeg one row
  // of MCUs further than a scaled decode of the same rows.
  int last_row_of(const Task& task, const ImageHeader& header) const {
    if (task.mode == LibraryMode::judge) return task.judged_rows;
    if (task.mode != LibraryMode::no_warnings) return 0;
    return reduced_size(std::min(task.judged_rows + info_.max_v_samp_factor * DCTSIZE, header.height), task.reduction);
  }

  // Reads rows before this one, where they were not skipped, for nothing but what libjpeg says of them.
  void pass_to(int row) {
    JSAMPROW line = line_.data();
    while (static_cast<int>(info_.output_scanline) < row) jpeg_read_scanlines(&info_, &line, 1);
  }

  // Rows of the box, straight into `storage` with whatever columns come; `pixels` is the box within.
  void read_rows(const Box& box, int left, ColourConversion conversion, PixelBuffer& storage, PixelView& pixels) {
    auto* const to_rgb = conversion == ColourConversion::opencv ? inverted_cmyk_to_rgb_opencv : inverted_cmyk_to_rgb;
    const int width = static_cast<int>(info_.output_width);
    const bool four = info_.out_color_components == 4;
    storage.resize(width, box.height);
    pass_to(box.y);
    JSAMPROW rows[8];
    int y = 0;
    while (y < box.height) {
      if (four) {
        rows[0] = line_.data();
        jpeg_read_scanlines(&info_, rows, 1);
        uint8_t* out = storage.row(y);
        for (int x = 0; x < width; ++x) {
          to_rgb(line_.data() + static_cast<size_t>(x) * 4, out + static_cast<size_t>(x) * 3);
        }
        ++y;
      } else {
        const int count = std::min(8, box.height - y);
        for (int i = 0; i < count; ++i) rows[i] = storage.row(y + i);
        y += static_cast<int>(jpeg_read_scanlines(&info_, rows, static_cast<JDIMENSION>(count)));
      }
    }
    pixels.data = storage.row(0) + static_cast<size_t>(box.x - left) * 3;
    pixels.width = box.width;
    pixels.height = box.height;
    pixels.row_bytes = storage.row_bytes();
  }

  jpeg_decompress_struct info_{};
  ErrorState errors_{};
  std::vector<uint8_t> line_;  // a row that is not kept, or of CMYK
  bool own_allowed_;
  OwnJpegDecoder own_;
};

JpegDecoder::JpegDecoder(const DecodeLimits& limits, const DecoderOptions& options)
    : impl_(std::make_unique<Impl>(limits, options)) {}
JpegDecoder::~JpegDecoder() = default;

const DecodeCounts& JpegDecoder::counts() const noexcept {
  return impl_->counts;
}

SampleStatus JpegDecoder::decode(EncodedView bytes, const ImageHeader& header, const Box& box, PixelBuffer& storage,
                                 PixelView& pixels, const DecodeOptions& decode_options) {
  return impl_->decode(bytes, header, box, storage, pixels, decode_options);
}

SampleStatus JpegDecoder::decode_reference(EncodedView bytes, const ImageHeader& header, const Box& box,
                                           PixelBuffer& storage, PixelView& pixels, int reduction) {
  return impl_->decode_reference(bytes, header, box, reduction, storage, pixels);
}

// The libjpeg interface has no call for the version; this is that of the headers, which the API level in the library's
// name keeps compatible, but a later patch level may be loaded. The error table names the library's own year.
#define PENSTOCK_TEXT_(x) #x
#define PENSTOCK_TEXT(x) PENSTOCK_TEXT_(x)
std::string jpeg_library_version() {
  jpeg_error_mgr manager;
  jpeg_std_error(&manager);
  std::string text = "libjpeg-turbo " PENSTOCK_TEXT(LIBJPEG_TURBO_VERSION) " (api " PENSTOCK_TEXT(JPEG_LIB_VERSION);
  const char* const notice = manager.jpeg_message_table[JMSG_COPYRIGHT];
  const char* const years = std::strchr(notice, '-');
  if (years != nullptr && std::strlen(years) > 5) text += ", " + std::string(years + 1, 4);
  return text + ")";
}

}  // namespace penstock
