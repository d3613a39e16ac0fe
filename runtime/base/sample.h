// What one sample is called and what was drawn for it: the plain data that every later stage agrees on.
//
//   BatchPlan batch = plan.batch(step, replica);                       // PlannedSamples, one a row (sampler/plan.h)
//   DrawKey key{seed, epoch, planned.index, planned.occurrence};
//   Draws draws = pipeline.draw(key, header);                          // transforms/pipeline.h
//
// What is drawn for a sample is a pure function of seed, epoch, index and occurrence (DrawKey). `valid` decides only
// whether the sample counts (a padding's label is one that no loss counts), and PlannedSample::position only where it
// stands. Nothing here knows who will make it: that is what lets any loader, thread or GPU make it with equal bytes.
// Thread-safety, ownership: values. Failure: none.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock {

// One place of a batch, as the sampler planned it.
//   position    place in the epoch's global order, padding included: row i of step s on replica r of R stands at
//               (s * batch_size + i) * R + r, so the order of an epoch does not depend on R.
//   index       the sample of the dataset that stands there
//   occurrence  how often this index stood at smaller positions of the same epoch (0 for the first time; padding
//               repeats the head of the order, so it is position / dataset_size there)
//   valid       false only for padding in an `eval` split: the sample must not count
struct PlannedSample {
  int64_t position = 0;
  int64_t index = 0;
  uint16_t occurrence = 0;
  bool valid = true;

  friend bool operator==(const PlannedSample&, const PlannedSample&) = default;
};

// Identifies who draws: the key and most of the counter of Philox4x32-10 (runtime/transforms/draw.h has the rest).
struct DrawKey {
  uint64_t seed = 0;
  uint32_t epoch = 0;
  uint64_t index = 0;  // 48 bits are used
  uint16_t occurrence = 0;
};

// What one transform drew. The meaning of `values` is the transform's own (a crop box, 0 or 1 for a flip, the bits of a
// double, ...) and is documented there; they are integers so that they can be hashed, sent and compared exactly.
struct TransformDraw {
  uint16_t position = 0;  // place of the transform in the pipeline; PlannedSample's is another
  std::vector<int64_t> values;

  friend bool operator==(const TransformDraw&, const TransformDraw&) = default;
};

// All draws of a sample, in pipeline order; transforms that draw nothing are absent. Which pipeline it was stands last,
// where there are two (transforms/variants.h).
using Draws = std::vector<TransformDraw>;

}  // namespace penstock
