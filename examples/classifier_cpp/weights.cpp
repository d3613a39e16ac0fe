#include "weights.h"

#include <torch/serialize.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <vector>

#include "runtime/base/error.h"

namespace {

using Tensors = std::map<std::string, torch::Tensor>;

[[noreturn]] void wrong(const std::string& what, const std::string& remedy = {}) {
  throw penstock::Error(penstock::ErrorKind::config, what, remedy);
}

// Parameters and buffers: what a state_dict has.
Tensors tensors_of(const torch::nn::Module& model) {
  Tensors all;
  for (const auto& one : model.named_parameters()) all.emplace(one.key(), one.value());
  for (const auto& one : model.named_buffers()) all.emplace(one.key(), one.value());
  return all;
}

Tensors read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) wrong("cannot read the weights '" + path + "'");
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  c10::IValue value;
  try {
    value = torch::pickle_load(bytes);
  } catch (const c10::Error& problem) {
    wrong("cannot read the weights '" + path + "': " + problem.what_without_backtrace(),
          "write them by torch.save(dict(model.state_dict()), FILE): libtorch reads no OrderedDict, which a state_dict "
          "is");
  }
  if (!value.isGenericDict()) wrong("'" + path + "' holds no state_dict");
  auto entries = value.toGenericDict();
  if (entries.contains("model") && entries.at("model").isGenericDict()) {  // a checkpoint
    entries = entries.at("model").toGenericDict();
  }
  Tensors all;
  for (const auto& entry : entries) {
    if (entry.key().isString() && entry.value().isTensor()) {
      all.emplace(entry.key().toStringRef(), entry.value().toTensor());
    }
  }
  return all;
}

std::string sizes_of(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

}  // namespace

void load_all(torch::nn::Module& model, const std::string& path) {
  const torch::NoGradGuard no_grad;
  Tensors own = tensors_of(model);
  const Tensors given = read(path);
  const std::string another = "'" + path + "' is of another network: ";
  for (auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) wrong(another + "it has no " + name);
    if (found->second.sizes() != tensor.sizes()) {
      wrong(another + name + " is " + sizes_of(found->second) + " there, and " + sizes_of(tensor) + " here");
    }
  }
  for (const auto& [name, tensor] : given) {
    if (own.count(name) == 0) wrong(another + "this network has no " + name);
  }
  for (auto& [name, tensor] : own) tensor.copy_(given.at(name));
}

std::pair<size_t, size_t> load_fitting(torch::nn::Module& model, const std::string& path) {
  const torch::NoGradGuard no_grad;
  Tensors own = tensors_of(model);
  size_t taken = 0;
  for (const auto& [name, tensor] : read(path)) {
    const auto found = own.find(name);
    if (found == own.end() || found->second.numel() != tensor.numel()) continue;
    found->second.copy_(tensor.reshape(found->second.sizes()));
    ++taken;
  }
  if (taken == 0) wrong("'" + path + "' has no weights of this network");
  return {taken, own.size()};
}

void save_all(const torch::nn::Module& model, const std::string& path) {
  c10::Dict<std::string, torch::Tensor> all;
  for (const auto& [name, tensor] : tensors_of(model)) all.insert(name, tensor.detach().cpu());
  const std::vector<char> bytes = torch::pickle_save(all);
  // The old file or the new one, never half of it, also where another run writes to this path.
  const std::string part = path + "." + std::to_string(::getpid()) + ".part";
  std::ofstream file(part, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw penstock::Error(penstock::ErrorKind::runtime, "cannot write '" + path + "'", "is the disk full?");
  std::filesystem::rename(part, path);
}
