// Batches written out for people and tests: what `penstock inspect` makes and `penstock run --dump` delivers.
//
//   DumpedBatch batch{.trainer = 0, .step = 3, ...};
//   write_batch("out", batch);
//
// Files, for trainer t and step s: t0_s3_images.npy ([n, 3, h, w]: as the trainer gets them, or the uint8 pixels before
//   finishing), t0_s3_field_NAME.npy (a slash being %2F) for every field besides image and label (for a bytes or text
//   field: all values, one after another, uint8, and t0_s3_ends_NAME.npy, int64 [n], where each one ends),
//   t0_s3_labels.npy (int64), t0_s3_indices.npy (int64), t0_s3_valid.npy (bool), and a line for each sample, which is
//   added to manifest.jsonl:
//     trainer, step, row_index, index, path, label, width, height  (width and height of the source image)
//     crop    [x, y, w, h] in source pixels, the integer box cut before any resize; may lie outside; else null
//     flip    [horizontal, vertical]
//     draws   every other draw, as [[position, [values]], ...]
//     variant   only where the split has a gpu_pipeline: "cpu" where pipeline made it, else "gpu"
//     split, epoch, position, planned_index, planned_path, occurrence, valid, reason
//     replica, batch_draws   only where MixUp or CutMix mix batches: whose batch, and [[position, [values]], ...]
//     hash_draws   all draws, as they stand in the hash's record (runtime/base/hash.h)
//     fields  where there are any: the names of the fields besides image and label, in the order of the table
//     text    where there are any: {name: value} of its text fields
// Lines of several trainers may be mixed: each batch's lines are added by one write.
// Failure: Error(runtime) naming the file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/fields.h"
#include "runtime/protocol/chunk.h"
#include "runtime/transforms/variants.h"

namespace penstock {

// A field besides image and label, and its memory.
struct DumpedField {
  FieldSpec field;
  std::byte* data = nullptr;
  bool channels_last = false;  // of images
};

struct DumpedBatch {
  int32_t trainer = 0;
  int64_t step = 0;
  int64_t epoch = 0;
  std::string split;
  const std::vector<SampleRecord>* records = nullptr;
  const std::vector<int64_t>* labels = nullptr;
  const Variants* variants = nullptr;
  Draws draws;  // of the batch
  int64_t replica = 0;
  std::string dataset_folder;
  TensorView images;  // [n, 3, h, w]
  std::vector<DumpedField> others;
};

// Makes the folder where it does not exist.
void write_batch(const std::string& folder, const DumpedBatch& batch);

// Removes the files of an earlier dump, and no others: lines are added to a manifest, and the earlier ones would speak
// of batches that are written over.
void clear_dump(const std::string& folder);
// Where `folder` holds dumps of whole jobs, one folder for each split and epoch: the first of `splits` whose dump is
// there; empty: none is.
std::string earlier_dump(const std::string& folder, const std::vector<std::string>& splits);

// The view of `samples` values of a field lying one after another.
TensorView field_batch_view(void* data, const FieldSpec& field, int64_t samples);

// The view of `samples` images lying one after another, as [n, c, h, w] or [n, views, c, h, w] whatever the memory
// format.
TensorView image_batch_view(void* data, const FieldSpec& field, int64_t samples, bool channels_last);

}  // namespace penstock
