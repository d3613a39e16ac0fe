// A small image folder and a job file for it, for tests of the whole way of a sample.
//
//   TinyDataset data(50);                       // 50 PNGs of 64x48 in 5 class folders, each with pixels of its own
//   DataLoader loader(data.job(), "train", {.overrides = {"loader.threads=1"}});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/report/contact_sheet.h"
#include "tests/support/temporary_folder.h"

namespace penstock {

class TinyDataset {
 public:
  static constexpr int kClasses = 5;

  explicit TinyDataset(int pictures, const std::string& extra_keys = "") {
    for (int i = 0; i < pictures; ++i) {
      std::vector<uint8_t> rgb(64 * 48 * 3);
      for (size_t p = 0; p < rgb.size(); ++p)
        rgb[p] = static_cast<uint8_t>(p * 7 / 5 + p / 192 * 3 + static_cast<size_t>(i) * 37);
      const std::vector<std::byte> png = encode_png(rgb.data(), 64, 48);
      folder_.write("data/" + name(i), {reinterpret_cast<const char*>(png.data()), png.size()});
    }
    folder_.write("job.yaml",
                  "seed: 3\n"
                  "loader: {threads: 2, memory_gb: 0.2}\n"
                  "trainer: {timeout_s: 30}\n" +
                      extra_keys +
                      "splits:\n"
                      "  train:\n"
                      "    mode: train\n"
                      "    dataset: {folder: data}\n"
                      "    pipeline: [{RandomResizedCrop: {size: 24}}, {RandomHorizontalFlip: {}},\n"
                      "               {ToDtype: {dtype: float32, scale: true}},\n"
                      "               {Normalize: {mean: [0.5, 0.4, 0.3], std: [0.2, 0.3, 0.4]}}]\n"
                      "    sampler: {shuffle: true}\n"
                      "    batch_size: 8\n"
                      "  val:\n"
                      "    mode: eval\n"
                      "    dataset: {folder: data}\n"
                      "    pipeline: [{CenterCrop: {size: 24}}, {ToDtype: {dtype: float32, scale: true}}]\n"
                      "    batch_size: 8\n");
  }

  // Index i of the dataset, as order of names within classes goes, when there are as many pictures in every class.
  static std::string name(int i) {
    const std::string number = std::to_string(i / kClasses);
    return "class" + std::to_string(i % kClasses) + "/" + std::string(4 - number.size(), '0') + number + ".png";
  }
  std::string job() const { return folder_.path("job.yaml"); }
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
};

}  // namespace penstock
