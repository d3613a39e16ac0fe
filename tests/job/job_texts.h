// Job files and helpers that the tests of runtime/job share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/job/job.h"

namespace penstock {

// The job file of the documentation, every key given.
inline const char* const good_job = R"(seed: 7
on_error: substitute           # or fail
roles: {trainers: 2}
loader: {threads: 3, prefetch: 4, memory_gb: 1.5}
transport: shm
splits:
  train:
    mode: train
    dataset: {folder: photos/train}
    pipeline:
      - RandomResizedCrop: {size: 224}
      - RandomHorizontalFlip
      - ToDtype: {dtype: float32, scale: true}
      - Normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
    sampler: {shuffle: true}
    batch_size: 64
    tail: torch
  val:
    mode: eval
    dataset: {folder: /data/val}
    pipeline: [{Resize: {size: [256, 256]}}]
    batch_size: 32
    tail: pad
)";

// A job whose only unusual part is `lines`: it stands in front of a split in order.
inline std::string with_split(const std::string& lines) {
  return lines + "splits: {train: {dataset: {folder: /d}, pipeline: [{Resize: {size: [8, 8]}}]}}\n";
}

// A job whose split `train` has these lines, indented by four.
inline std::string split_of(const std::string& lines) {
  return "splits:\n  train:\n" + lines;
}

inline std::string complaint(const std::string& text, const std::vector<std::string>& overrides = {},
                             const std::map<std::string, std::string>& environment = {}) {
  try {
    parse_job(text, "job.yaml", overrides, environment);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::config) return std::string("WRONG KIND: ") + error.what();
    return error.what();
  }
  return "accepted";
}

}  // namespace penstock
