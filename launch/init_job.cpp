#include "launch/init_job.h"

#include <cstdint>
#include <cstdio>

#include "runtime/base/error.h"

namespace penstock {
namespace {

// Length of the well-formed UTF-8 sequence at text[at]; 0 where there is none.
size_t sequence_length(const std::string& text, size_t at) {
  const auto byte = [&](size_t offset) -> unsigned char {
    return at + offset < text.size() ? static_cast<unsigned char>(text[at + offset]) : 0;
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond U+10FFFF.
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) >= 0xA0) || (lead == 0xF0 && byte(1) < 0x90) ||
      (lead == 0xF4 && byte(1) >= 0x90)) {
    return 0;
  }
  return length;
}

const char* const head = R"(# yaml-language-server: $schema=penstock.schema.json
# The line above lets an editor complete and check this file, once you have run: penstock schema > penstock.schema.json
#
#   penstock check job.yaml                              is everything in order?
#   penstock launch --run job.yaml -n 4 -- python train.py    on this machine, with 2 trainers and 2 loaders
# Any key can be set for one run: penstock run job.yaml loader.threads=4 splits.train.batch_size=128

seed: 0                  # of the order and of every random draw: the same seed gives the same stream, bit for bit
on_error: fail           # an unreadable image ends the job by name; substitute: takes another one and reports it

roles: {trainers: 2}     # trainer ranks per node; the node's other ranks load

loader:
  threads: 2             # that decode, in each loader rank
  prefetch: 2            # batches made ahead, for each trainer
  memory_gb: 2           # that a loader rank may use

transport: auto          # how batches travel: inproc, shm (same node), mpi, or auto for the best that works

splits:
  train:
    mode: train          # padding at the end of an epoch is ordinary data
    dataset:
)";

const char* const train_rest = R"(
    pipeline:            # names and meaning as in torchvision.transforms.v2
      - RandomResizedCrop: {size: 224}
      - RandomHorizontalFlip: {}
      - ToDtype: {dtype: float32, scale: true}
      - Normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}  # ImageNet's, for RGB in 0 to 1
    sampler: {shuffle: true}
    batch_size: 64       # per trainer
    tail: torch          # the end of an epoch as torch's DistributedSampler has it; or pad, or drop
)";

const char* const val_head = R"(
  val:
    mode: eval           # each sample counts exactly once: padding has valid = false
    dataset:
)";

const char* const val_rest = R"(
    pipeline:
      - Resize: {size: 256}
      - CenterCrop: {size: 224}
      - ToDtype: {dtype: float32, scale: true}
      - Normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
    sampler: {shuffle: false}
    batch_size: 64
    tail: pad            # every trainer gets the same number of batches
)";

// The line under `dataset:`.
std::string data_line(const InitData& data, const char* about_folders) {
  return std::string("      ") + (data.pack ? "pack: " : "folder: ") + yaml_quoted(data.folder) + "  # " +
         (data.pack ? "that penstock pack wrote" : about_folders);
}

}  // namespace

std::string yaml_quoted(const std::string& text) {
  constexpr const char* digits = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(text, at);
    if (length == 0) {
      throw Error(ErrorKind::usage, "'" + text + "' is no UTF-8, so no job file can name it", "rename the folder");
    }
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto second = length > 1 ? static_cast<unsigned char>(text[at + 1]) : 0U;
    const auto third = length > 2 ? static_cast<unsigned char>(text[at + 2]) : 0U;
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += text[at];
    } else if (byte < 0x20 || byte == 0x7F) {
      ((quoted += "\\x") += digits[byte >> 4]) += digits[byte & 15];
    } else if (byte == 0xC2 && second < 0xA0) {  // U+0080 to U+009F: controls, among them a line break
      ((quoted += "\\x") += digits[second >> 4]) += digits[second & 15];
    } else if (byte == 0xE2 && second == 0x80 && (third == 0xA8 || third == 0xA9)) {  // line and paragraph separator
      quoted += third == 0xA8 ? "\\u2028" : "\\u2029";
    } else if (byte == 0xEF && second == 0xBB && third == 0xBF) {  // a byte-order mark
      quoted += "\\uFEFF";
    } else {
      quoted.append(text, at, length);
    }
    at += length;
  }
  return quoted + "\"";
}

std::string init_job(const InitData& train, const InitData& val, double val_share) {
  if (train.folder.empty()) {
    throw Error(ErrorKind::usage, "no folder of training images is named", "penstock init --data DIR [--val DIR]");
  }
  const std::string folder = data_line(train, "holds one folder per class; a relative path starts at this file");
  if (val_share > 0 && !val.folder.empty()) {
    throw Error(ErrorKind::usage, "a share of the training folder and a folder of its own are both for validation",
                "leave one of them out");
  }
  if (val_share > 0) {
    const auto part = [&](const char* key, const std::string& value, const char* about) {
      return "\n      " + std::string(key) + ": " + value + "  # " + about;
    };
    char share[32];
    std::snprintf(share, sizeof share, "%g", val_share);
    const std::string held_out = part("val_share", share, "of each class, which train: false is") +
                                 part("val_seed", "0", "which pictures those are");
    return head + folder + held_out + train_rest + val_head + folder + held_out +
           part("train", "false", "the held-out part") + val_rest;
  }
  std::string job = head + folder + train_rest;
  if (!val.folder.empty()) job += val_head + data_line(val, "the same class folders as above") + val_rest;
  return job;
}

}  // namespace penstock
