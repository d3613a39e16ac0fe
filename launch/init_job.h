// The first job file of a new user: complete, annotated, ready to run.
//
//   std::cout << init_job({"photos/train"}, {"photos/val"});
//
// Trains as the ImageNet recipes do (RandomResizedCrop 224, flip, Normalize); with a validation folder, or a share of the one
//   folder, there is a second split that counts every sample exactly once.
// Nothing is opened: the text depends on the names and the share alone. Names are written as given, and a job file's
//   relative path starts at the file's folder: pass absolute paths unless you know where the file will stand.
// Failure: Error(usage) for a name that YAML cannot hold (no UTF-8, or empty).
#pragma once

#include <string>
#include <utility>

namespace penstock {

// What a split's samples come from: a folder of class folders, or one that `penstock pack` wrote.
struct InitData {
  std::string folder;  // empty: no such split
  bool pack = false;

  InitData() = default;
  InitData(std::string name, bool is_pack = false) : folder(std::move(name)), pack(is_pack) {}
};

// `val_share`: of the folder's pictures, held out for a second split; there is no other folder then.
std::string init_job(const InitData& train, const InitData& val = {}, double val_share = 0);

// A double-quoted YAML scalar: any UTF-8 text, in one line.
std::string yaml_quoted(const std::string& text);

}  // namespace penstock
