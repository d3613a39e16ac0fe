// Weights from files that Python's torch.save wrote, and back.
//
//   load_all(*model, "epoch-3.pt");          // a state_dict, or a checkpoint of examples/classifier
//   save_all(*model, "weights.pt");          // which Python's torch.load reads
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
