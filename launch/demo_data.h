// Photo-like pictures in class folders, for anybody who has no data set at hand.
//
//   make_demo_data({.folder = "demo", .count = 1000, .val_count = 200});
//   // demo/train/class00/000000.jpg … demo/val/class09/000199.jpg
//
// Like ImageNet's photos in what a loader feels: about 110 KB a file with a long tail to 1 MB, mostly 500 pixels wide,
//   portrait and landscape, 4:4:4, 4:2:0, some 4:2:2 and 4:4:0, a few grey, progressive or with restart markers,
//   qualities 70 to 96, 1/f detail, edges and grain. A DemoKind makes sets that are alike in subsampling, or of large
//   photos.
//   Like a photo set in what a model feels: a class is a hue, the shape of the largest object and the direction of a
//   texture, under changing light, place, scale and clutter; a small network learns it within an epoch or two.
// Determinism: a picture is a function of (seed, split, index, classes, kind) alone, in integer arithmetic throughout,
//   so the files are the same bytes for any number of threads, compiler and CPU (libjpeg's encoder is integer too).
// Thread-safety: one caller per folder. Uses `threads` threads and joins them.
// Failure: Error(usage) for impossible options and for a folder that holds something else; Error(runtime) naming the
//   path for the disk. A folder with the same demo data is completed, or left as it is when complete: every picture
//   gets its name only when it is whole, so breaking off does no harm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace penstock {

enum class DemoSubsampling : uint8_t { mixed = 0, chroma_420 = 1, chroma_444 = 2 };

// What a set is for when it is not a photo set's usual mixture.
struct DemoKind {
  DemoSubsampling subsampling = DemoSubsampling::mixed;  // of every picture that has colour
  // Sizes spread evenly in proportion, with a camera's smoothness: about 2 bits a pixel. 0: ImageNet's sizes.
  int min_megapixels = 0;
  int max_megapixels = 0;

  friend bool operator==(const DemoKind&, const DemoKind&) = default;
};

struct DemoDataOptions {
  std::string folder;
  int64_t count = 1000;     // pictures in folder/train
  int64_t val_count = 200;  // pictures in folder/val; 0: no such folder
  int classes = 10;         // 1 to 400
  uint64_t seed = 0;
  int threads = 0;  // 0: one per core
  DemoKind kind{};
  // Called now and then, from one thread at a time.
  std::function<void(int64_t done, int64_t total)> progress{};
};

struct DemoDataResult {
  int64_t made = 0;    // pictures written now
  int64_t reused = 0;  // pictures that were there
  int64_t bytes = 0;   // written now
};

DemoDataResult make_demo_data(const DemoDataOptions& options);

// One picture, as the file's bytes: what make_demo_data writes for `index` of split "train" or "val".
std::vector<std::byte> make_demo_picture(const std::string& split, int64_t index, int classes, uint64_t seed,
                                         const DemoKind& kind = {});

}  // namespace penstock
