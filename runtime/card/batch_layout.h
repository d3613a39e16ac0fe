// What a card is told about a batch of pictures: descriptors, one array a stage, pictures of any sizes mixed.
//
// A batch lies in one piece of card memory, and every place in it is an offset from its beginning. A stage is one
//   launch over an array of *parts* (all of one type, any number a picture) and an array of *spans*: a span is
//   span_threads consecutive units of work of one part, so a group of threads finds its part without searching.
//
//   upload                                              scratch                        outputs
//   [coefficients, taps, rings, tables | parts, spans]  [samples, planes, half-resized] [one after the other]
//
//   stage      | unit of work              | reads                    | writes
//   inverse    | a block                   | coefficients             | samples of a component
//   colour     | a pixel                   | samples                  | planes; or the output, where nothing is resized
//   across     | a pixel                   | planes                   | planes of the output's width
//   down       | a pixel                   | those                    | the output: planes of uint8 (CHW)
//   finish     | a pixel                   | the output               | a tensor (FinishSpec)
// Plain data with fixed layout, compiled by host and card alike; filled by batch_builder.h, read by kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

inline constexpr uint32_t span_threads = 256;

enum class CardStage : uint8_t { inverse, colour, across, down, finish };
inline constexpr size_t card_stages = 5;

struct PartSpan {
  uint32_t part = 0;
  uint32_t first = 0;  // unit of work
};

// One launch.
struct StageLaunch {
  CardStage stage = CardStage::inverse;
  uint32_t spans = 0;
  uint64_t spans_at = 0;
  uint64_t parts_at = 0;
};

struct CardBox {
  int32_t x = 0;
  int32_t y = 0;
  int32_t width = 0;
  int32_t height = 0;
};

// Outer minus inner is painted (augment/geometric_plan.h).
struct CardRing {
  CardBox outer;
  CardBox inner;
  uint8_t fill[4] = {};
};

// Where each pixel of a result comes from: pixel (x, y) of `live` is pixel (source_x + x, source_y + y), mirrored
// within `live` where asked; the others are the first ring's that has them.
struct Placement {
  int32_t width = 0;  // of the result
  int32_t height = 0;
  CardBox live;
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

struct InversePart {
  uint32_t units = 0;  // blocks
  uint32_t across = 0;
  uint64_t coefficients_at = 0;  // rows of tiles (decode/coefficient_tiles.h)
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
  uint64_t planes_at = 0;  // three, row after row
};

// A dimension's weights: `count` outputs; output i takes sources start[i] .. start[i] + size[i] - 1.
struct CardTaps {
  uint64_t start_at = 0;   // int32_t each
  uint64_t size_at = 0;    // int32_t
  uint64_t weight_at = 0;  // int32_t, Q22
  uint32_t step = 0;       // from one tap's weight to the next one's
  uint32_t turn = 0;       // from one output's weights to the next one's
};

struct AcrossPart {
  uint32_t units = 0;  // pixels made: width * height
  int32_t width = 0;
  int32_t height = 0;
  int32_t from_width = 0;  // rows are as many as made
  CardTaps taps;
  uint64_t from_at = 0;
  uint64_t to_at = 0;
};

struct DownPart {
  uint32_t units = 0;  // pixels of place's result
  Placement place;     // its source is the resized image's window
  int32_t from_width = 0;
  int32_t from_height = 0;
  CardTaps taps;  // by row of that window
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

}  // namespace penstock
