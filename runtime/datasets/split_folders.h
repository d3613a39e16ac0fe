// The mistake that ImageFolder cannot see: the folder above train/ and val/, given where one of them was meant.
//
//   // "train", "val": two classes, by torchvision's rules
//   for (const std::string& name : splits_as_classes("imagenet")) …
//
// Thread-safety: reads the disk, keeps nothing. Failure: none; a folder that cannot be listed has no such names, and
// whoever lists the data set says what is wrong with it.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace penstock {

// The names of a folder's folders, sorted, where they are names of splits (train, val, test, …) and hold class folders
// of their own: as a data set of class folders they would be the classes. Empty: they are not.
std::vector<std::string> splits_as_classes(const std::string& folder, FileSystem& files = posix_file_system());

}  // namespace penstock
