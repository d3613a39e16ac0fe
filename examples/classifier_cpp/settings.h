// The settings of an experiment, from the files that examples/classifier/settings.py reads: YAML or JSON, with
// `include:` for what several have in common, every key known.
//
//   const Settings settings = read_settings("configs/resnet18.yaml", {"stages.0.epochs=2"});
//
// Relative paths begin at the folder of the file that they stand in; those of changes, and `output`, at the current
// one.
// Failure: penstock::Error(config) that names the file or the key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Stage {
  std::string name;
  int64_t epochs = 0;
  std::vector<std::string> freeze;  // branches ("layer1"), names of parameters, or patterns with * in them
  std::vector<double> rates;        // of each epoch, the last one staying
  double falling_rate = 0;          // where there are no `rates`: falls by a cosine to a hundredth
  std::string optimizer;
  double momentum = 0;
  double weight_decay = 0;

  double rate(int64_t epoch) const;
};

struct Settings {
  std::string output;
  int64_t seed = 0;
  std::string network;
  std::string weights;     // those of a file that have as many numbers here
  std::string checkpoint;  // all of a file
  std::string job;
  std::string folder;
  std::string lists;
  int64_t batch_size = 0;
  int64_t image_size = 0;
  std::vector<std::string> overrides;
  double label_smoothing = 0;
  std::vector<int64_t> top_k;
  std::vector<Stage> stages;
};

Settings read_settings(const std::string& path, const std::vector<std::string>& changes);
