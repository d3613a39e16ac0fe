// The files of a pack's samples, out of it again.
//
//   const UnpackResult result = unpack({.pack = "train.pack", .folder = "photos"});
//
// Where they go. Pictures that were files of their own (class folders, CSV files, lists): to their old names, relative
//   to the folder. Pairs: to images/, targets/ and masks/ below it. Pictures from shards had no file: NAME.jpg (.png,
//   …) by their first bytes, pixels as NAME.ppm or .pgm. But for class folders and pairs, labels and fields that are
//   single numbers or texts go to samples.csv, which `dataset: {csv: …}` reads; arrays to NAME.FIELD.npy, bytes to
//   NAME.FIELD.
// What they are: byte for byte what was packed; rewritten pictures as they were rewritten.
// Names are not trusted: absolute ones, "..", those that are too long, two files of one name, and whatever leads
//   through a link is refused, before anything is written (links: when they are met). A file that is there is kept
//   where it is the same, and else an Error, unless `overwrite` says to replace it. Files appear under their names when
//   they are whole.
// A damaged record costs its sample alone.
// Failure: Error(usage) for names and files in the way and for tar shards, Error(dataset) and FileError for the pack's index and the disk.
// Thread-safety: one caller per folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock {

struct UnpackOptions {
  std::string pack;
  std::string folder;
  bool overwrite = false;
  std::function<bool(int64_t done, int64_t total, uint64_t bytes)> go_on{};  // false: stop
};

struct UnpackResult {
  bool finished = false;
  int64_t samples = 0;
  int64_t written = 0;    // files
  int64_t there = 0;      // files that were there, the same
  int64_t rewritten = 0;  // samples whose picture is not the file that was packed
  uint64_t bytes = 0;
  std::vector<std::string> damaged;  // samples that could not be read, which are left out: what and where
};

UnpackResult unpack(const UnpackOptions& options);

}  // namespace penstock
