// What a GPU is told about a batch of pictures: descriptors, one array a stage, pictures of any sizes mixed.
//
// A batch lies in one piece of GPU memory, and every place in it is an offset from its beginning. A stage works on
//   *parts* (all of one type, any number a picture), and a launch on a run of its array of *spans*: a span is
//   kSpanThreads consecutive units of work of one part, so a group of threads finds its part without searching.
//
//   upload                                                      scratch                         outputs
//   [coefficients, taps, rings, tables, tallies | parts, spans] [samples, planes, half-resized] [one after the other]
//
// Where a GPU decodes entropy, the bytes of the file are uploaded instead of coefficients, which are scratch then: by
//   an index (decode/jpeg/side_index.h) or restart markers in the stage `entropy`, without either in `sync`, `sum`,
//   `write`.
//
//   stage        | unit of work              | reads                    | writes
//   entropy      | a run between points      | bytes of the file        | coefficients; a bad status if it is not good
//   sync         | some subsequences         | bytes of the file        | where each begins and ends, what it has
//   sum          | 64 subsequences           | that                     | sums
//   write        | a subsequence             | both, and the bytes      | coefficients; a bad status if it is not good
//   inverse      | a block                   | coefficients             | samples of a component
//   colour       | a pixel                   | samples                  | an image
//   across       | a pixel                   | an image                 | one of the output's width
//   down         | a pixel                   | that                     | an image
//   place        | a pixel                   | an image                 | one cut, mirrored and framed
//   point        | a pixel                   | an image                 | one of the same size, or itself
//   tally        | 16 pixels                 | an image                 | its grey sum or histograms, by adding
//   tone         | an entry of a table       | the tally                | tables for point
//   smooth       | a pixel                   | an image                 | one of the same size
//   blur_across  | a pixel                   | an image                 | floats
//   blur_down    | a pixel                   | those                    | an image
//   warp         | a pixel                   | an image                 | an image
//   gather       | a pixel                   | an image                 | an image
//   finish       | a pixel                   | the last image           | a tensor (FinishSpec)
//   hash         | a lane of 1,024 bytes     | the last image           | sums
//   digest       | an image                  | those                    | XXH3-128
// An image is three planes of uint8, without gaps; the last one of a picture is its output.
// Plain data with fixed layout, compiled by host and GPU alike; filled by batch_builder.h, read by kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/pixels/warp_math.h"

namespace penstock {

inline constexpr uint32_t kSpanThreads = 256;

enum class GpuStage : uint8_t {
  entropy,
  sync,
  sum,
  write,
  inverse,
  colour,
  across,
  down,
  place,
  point,
  tally,
  tone,
  smooth,
  blur_across,
  blur_down,
  warp,
  gather,
  finish,
  hash,
  digest
};
inline constexpr size_t kGpuStages = 20;

struct PartSpan {
  uint32_t part = 0;
  uint32_t first = 0;  // unit of work
};

// One launch.
struct StageLaunch {
  GpuStage stage = GpuStage::inverse;
  uint32_t spans = 0;
  uint64_t spans_at = 0;
  uint64_t parts_at = 0;
  uint8_t* outputs = nullptr;  // finish: where its parts' to_at count from, memory of the GPU; nullptr: in the batch
};

struct GpuBox {
  int32_t x = 0;
  int32_t y = 0;
  int32_t width = 0;
  int32_t height = 0;
};

// Outer minus inner is painted (transforms/crop_resize_plan.h).
struct GpuRing {
  GpuBox outer;
  GpuBox inner;
  uint8_t fill[4] = {};
};

// Where each pixel of a result comes from: pixel (x, y) of `live` is pixel (source_x + x, source_y + y), mirrored
// within `live` where asked; the others are the first ring's that has them.
struct Placement {
  int32_t width = 0;  // of the result
  int32_t height = 0;
  GpuBox live;
  int32_t source_x = 0;
  int32_t source_y = 0;
  uint32_t mirror_x = 0;
  uint32_t mirror_y = 0;
  uint32_t rings = 0;
  uint64_t rings_at = 0;
};

// A rectangle of a component's samples.
struct SamplePlane {
  uint64_t at = 0;
  uint32_t stride = 0;
  int32_t x = 0;  // of its first sample, in the component's coordinates
  int32_t y = 0;
};

// MCUs from a restart point on.
struct GpuMcuRun {
  enum class End : uint32_t {
    early,        // somewhere before the next restart point
    point,        // there, with its predictions
    marker,       // the end of the scan, or of a restart interval
    no_warnings,  // anywhere, as long as enough follows that libjpeg reads ahead without a word
  };
  uint32_t byte = 0;  // of the part's bytes, that has the first bit
  uint32_t bit = 0;
  uint32_t end_byte = 0;  // the next restart point, or the marker; none where it ends without warnings
  uint32_t end_bit = 0;
  uint32_t first_mcu = 0;  // of the image
  uint32_t mcus = 0;
  End end = End::early;
  int16_t dc[3] = {};
  int16_t end_dc[3] = {};
};

// Rows of eight coefficients lie on multiples of their size, and move whole.
struct alignas(16) CoefficientRow {
  int16_t value[8];
};

// A component's quantised coefficients: rows of tiles (decode/jpeg/coefficient_tiles.h).
struct GpuCoefficients {
  uint64_t at = 0;
  uint64_t row_bytes = 0;
  int32_t first_column = 0;  // in blocks of the component
  int32_t first_row = 0;
  int32_t end_column = 0;
  int32_t end_row = 0;
};

// A block of an MCU.
struct McuBlock {
  uint32_t component = 0;
  uint32_t across = 0;
  uint32_t down = 0;
  uint64_t dc_at = 0;  // its tables: CodeTable (decode/jpeg/huffman_table.h)
  uint64_t ac_at = 0;
};

struct EntropyPart {
  uint32_t units = 0;  // runs of MCUs
  uint32_t bytes = 0;
  uint64_t mcu_runs_at = 0;
  uint64_t bytes_at = 0;   // the file's, stuffed as they are there
  uint64_t status_at = 0;  // uint32_t, 0 beforehand: 1 where the CPU has to look at the file
  uint32_t mcu_columns = 0;
  uint32_t restart_interval = 0;  // MCUs; 0: none. Runs of MCUs begin where one does
  uint32_t mcu_blocks = 0;
  McuBlock mcu_block[6];
  int32_t h[3] = {};  // blocks of an MCU, by component
  int32_t v[3] = {};
  GpuCoefficients coefficients[3];
  // Where a block's k-th coefficient lies in its tile. A table in the kernel would be made anew, in each thread's own
  // memory, for every coefficient.
  uint8_t places[64] = {};
};

// Between two codes of a scan: all that decoding goes by, but for predictions.
struct ScanPlace {
  uint32_t byte = 0;           // that has the next bit; never the zero behind an 0xFF
  uint32_t bit : 3 = 0;        // of that byte
  uint32_t mcu_block : 3 = 0;  // block of the MCU
  uint32_t next : 6 = 0;       // coefficient of the block
  uint32_t stopped : 1 = 0;
};

// Some bytes of a scan: where decoding begins at the first code in them, where it ends before the first code behind
// them, and what it finds in between.
struct alignas(16) GpuSubsequence {
  ScanPlace start;
  ScanPlace end;
  uint32_t blocks = 0;  // that end
  uint32_t dc[3] = {};  // the sum of the differences of each component, modulo 2^32
};

// The sum over a group of subsequences.
struct alignas(16) GpuSubsequenceSum {
  uint32_t blocks = 0;
  uint32_t dc[3] = {};
};
inline constexpr uint32_t kSubsequencesOfSum = 64;

// A round: unit u has the `group` subsequences from number (first + u * step) * group on.
struct SyncPart {
  uint32_t units = 0;
  uint32_t assumed = 0;  // the first round: where subsequences start is not known yet
  uint32_t first = 0;
  uint32_t step = 0;
  uint32_t group = 0;
  uint32_t subsequences = 0;
  uint32_t subsequence_bytes = 0;
  uint32_t bytes = 0;
  uint64_t bytes_at = 0;
  uint64_t subsequences_at = 0;
  uint32_t mcu_blocks = 0;
  McuBlock mcu_block[6];
};

struct SumPart {
  uint32_t units = 0;
  uint32_t subsequences = 0;
  uint64_t subsequences_at = 0;
  uint64_t to_at = 0;  // GpuSubsequenceSum
};

struct WritePart {
  uint32_t units = 0;  // subsequences
  uint32_t subsequence_bytes = 0;
  uint64_t subsequences_at = 0;
  uint64_t sums_at = 0;
  uint32_t blocks = 0;    // of the scan, up to the last row that the CPU would read
  int32_t first_row = 0;  // MCUs that the crop needs
  int32_t first_column = 0;
  int32_t end_column = 0;
  EntropyPart entropy;  // but its runs of MCUs
};

struct InversePart {
  uint32_t units = 0;  // blocks
  uint32_t across = 0;
  uint64_t coefficients_at = 0;  // rows of tiles (decode/jpeg/coefficient_tiles.h)
  uint64_t row_bytes = 0;        // of a row of tiles
  SamplePlane samples;
  uint16_t quant[64] = {};
};

struct ColourPart {
  uint32_t units = 0;  // pixels of place's result
  Placement place;     // its source is the image
  SamplePlane luma;
  SamplePlane chroma[2];
  int32_t components = 0;  // 1: grey
  int32_t h = 1;           // of luma, to one of chroma
  int32_t v = 1;
  int32_t chroma_width = 0;  // of the whole image: its borders are what interpolation goes by
  int32_t chroma_height = 0;
  uint64_t to_at = 0;
};

// A dimension's weights: `count` outputs; output i takes sources start[i] .. start[i] + size[i] - 1.
struct GpuTaps {
  uint64_t start_at = 0;   // int32_t each
  uint64_t size_at = 0;    // int32_t
  uint64_t weight_at = 0;  // int32_t, Q22
  uint32_t step = 0;       // from one tap's weight to the next one's
  uint32_t stride = 0;     // from one output's weights to the next one's
};

struct AcrossPart {
  uint32_t units = 0;  // pixels made: width * height
  int32_t width = 0;
  int32_t height = 0;
  int32_t from_width = 0;  // rows are as many as made
  GpuTaps taps;
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

struct DownPart {
  uint32_t units = 0;  // pixels of place's result
  Placement place;     // its source is the resized image's window
  int32_t from_width = 0;
  int32_t from_height = 0;
  GpuTaps taps;  // by row of that window
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

struct PlacePart {
  uint32_t units = 0;  // pixels of place's result
  Placement place;
  int32_t from_width = 0;
  int32_t from_height = 0;
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

enum class PointKind : uint32_t {
  table,
  grey,
  saturation,
  hue,
  permute,
  fill,
  noise,          // uniform, instead of the pixel
  noise_clipped,  // normal, added
  noise_wrapped,
};

// One change of a pixel by itself.
struct PointStep {
  PointKind kind = PointKind::table;
  uint32_t stride = 0;     // table: from one channel's to the next one's; 0: one for all
  uint64_t table_at = 0;   // 256 bytes
  float factor = 1;        // saturation; normal noise: its spread
  float offset = 0;        // normal noise
  uint32_t shift = 0;      // hue
  GpuBox box;              // fill, noise
  uint8_t colour[4] = {};  // fill; permute: the channels that become red, green and blue
  uint64_t seed = 0;
};

struct PointPart {
  uint32_t units = 0;  // pixels
  int32_t width = 0;
  uint32_t steps = 0;
  uint64_t steps_at = 0;
  uint64_t from_at = 0;
  uint64_t to_at = 0;  // may be from_at
};

inline constexpr uint32_t kTallyPixels = 16;

enum class ToneKind : uint32_t { contrast, autocontrast, equalize };

// The tally begins as zeros in what is uploaded: for contrast a uint64_t, else three histograms of 256 uint32_t.
struct TallyPart {
  uint32_t units = 0;
  ToneKind kind = ToneKind::contrast;
  uint32_t pixels = 0;
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

struct TonePart {
  uint32_t units = 0;  // entries: of one table or of three
  ToneKind kind = ToneKind::contrast;
  uint32_t pixels = 0;
  float factor = 1;  // contrast
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

struct SmoothPart {
  uint32_t units = 0;  // pixels
  int32_t width = 0;
  int32_t height = 0;
  float factor = 1;
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

// One direction of a blur, by weights of the middle and of each distance from it.
struct BlurPart {
  uint32_t units = 0;  // pixels
  int32_t width = 0;
  int32_t height = 0;
  int32_t half = 0;
  uint64_t weights_at = 0;  // half + 1 floats
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

enum class WarpKind : uint32_t { nearest, fixed, bilinear, bicubic };

struct WarpPart {
  uint32_t units = 0;  // pixels made
  WarpKind kind = WarpKind::nearest;
  WarpMap map;
  FixedMap fixed;  // WarpKind::fixed
  int32_t width = 0;
  int32_t from_width = 0;
  int32_t from_height = 0;
  uint8_t fill[4] = {};
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

// Pixel (x, y) is the image's (columns[x], rows[y]), with `turned` its (columns[y], rows[x]); -1: the fill.
struct GatherPart {
  uint32_t units = 0;  // pixels made
  int32_t width = 0;
  int32_t from_width = 0;
  int32_t from_height = 0;
  uint32_t turned = 0;
  uint8_t fill[4] = {};
  uint64_t columns_at = 0;  // int32_t each
  uint64_t rows_at = 0;
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

struct FinishPart {
  uint32_t units = 0;  // pixels
  uint32_t element_bytes = 1;
  uint32_t interleaved = 0;
  uint64_t table_at = 0;  // 3 x 256 uint32_t: the bits of each value, a channel after the other
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

inline constexpr uint32_t kHashLanes = 8;
inline constexpr uint32_t kHashStripeBytes = 64;
inline constexpr uint32_t kHashBlockBytes = 1024;
inline constexpr uint32_t kHashSecretBytes = 192;
inline constexpr uint32_t kHashLeastBytes = 241;  // fewer are hashed in another way
// A record of more is not hashed on a GPU.
inline constexpr uint32_t kHashRecordRoom = 1024;

// Record and image are hashed as if the one followed the other.
struct HashPart {
  uint32_t units = 0;  // lanes of blocks: as many as with a record that fills its room
  uint32_t record_bytes = 0;
  uint64_t image_bytes = 0;
  uint64_t record_at = 0;
  uint64_t image_at = 0;
  uint64_t secret_at = 0;
  uint64_t sums_at = 0;  // uint64_t each
};

struct DigestPart {
  uint32_t units = 1;
  HashPart hash;
  uint64_t to_at = 0;  // two uint64_t: low, high
};

// A number of these types' sizes, in this order.
template <class... Types>
constexpr uint32_t number_of_sizes() {
  uint32_t number = 0;
  ((number = number * 31 + static_cast<uint32_t>(sizeof(Types))), ...);
  return number;
}
// A checksum of the layout of everything that a batch sends to a GPU: a component compiled with another layout is
// refused.
inline constexpr uint32_t kBatchLayoutSizes =
    kGpuStages + 31 * number_of_sizes<PartSpan, StageLaunch, GpuRing, GpuMcuRun, EntropyPart, GpuSubsequence, SyncPart,
                                      SumPart, WritePart, InversePart, ColourPart, AcrossPart, DownPart, PlacePart,
                                      PointStep, PointPart, TallyPart, TonePart, SmoothPart, BlurPart, WarpPart,
                                      GatherPart, FinishPart, HashPart, DigestPart>();

}  // namespace penstock
