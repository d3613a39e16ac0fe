// Weights from files that Python's torch.save wrote, and back.
//
//   torch.save(dict(model.state_dict()), "start.pt")      # Python: libtorch's unpickler has no OrderedDict
//
//   load_all(*model, "start.pt");                         // or a dict whose "model" is such a one
//   save_all(*model, "weights.pt");                       // for torch.load("weights.pt", weights_only=False)
//
// Trust: the file is read by libtorch's unpickler, which knows tensors and plain values and runs no code of the file's.
// Failure: penstock::Error that names the file and what differs first.
#pragma once

#include <torch/nn.h>

#include <string>
#include <utility>

void load_all(torch::nn::Module& model, const std::string& path);
// Those that have as many numbers here: {how many those were, of how many}.
std::pair<size_t, size_t> load_fitting(torch::nn::Module& model, const std::string& path);
void save_all(const torch::nn::Module& model, const std::string& path);
