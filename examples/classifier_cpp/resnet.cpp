#include "resnet.h"

#include <array>
#include <map>

#include "runtime/base/error.h"

namespace {

torch::nn::Conv2d convolution(int64_t from, int64_t to, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(int64_t from, int64_t to, int64_t stride, torch::nn::Sequential shortcut) {
    conv1 = register_module("conv1", convolution(from, to, 3, stride));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(to));
    conv2 = register_module("conv2", convolution(to, to, 3, 1));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(to));
    if (shortcut) downsample = register_module("downsample", shortcut);
  }

  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor out = bn1(conv1(x)).relu_();
    out = bn2(conv2(out));
    out += downsample ? downsample->forward(x) : x;
    return out.relu_();
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

const std::array<int64_t, 4>& blocks_of(const std::string& name) {
  static const std::map<std::string, std::array<int64_t, 4>> known = {{"resnet18", {2, 2, 2, 2}},
                                                                      {"resnet34", {3, 4, 6, 3}}};
  const auto found = known.find(name);
  if (found == known.end()) {
    throw penstock::Error(penstock::ErrorKind::config, "'network.name': this program has no '" + name + "'",
                          "it has resnet18 and resnet34; the Python program has all of torchvision's");
  }
  return found->second;
}

}  // namespace

// In torchvision's order, in which random numbers are drawn.
ResNetImpl::ResNetImpl(const std::string& name, int64_t classes) {
  const std::array<int64_t, 4>& blocks = blocks_of(name);
  conv1_ =
      register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)));
  bn1_ = register_module("bn1", torch::nn::BatchNorm2d(64));
  layer1_ = register_module("layer1", make_layer(64, blocks[0], 1));
  layer2_ = register_module("layer2", make_layer(128, blocks[1], 2));
  layer3_ = register_module("layer3", make_layer(256, blocks[2], 2));
  layer4_ = register_module("layer4", make_layer(512, blocks[3], 2));
  fc_ = register_module("fc", torch::nn::Linear(512, classes));
  for (const auto& module : modules(false)) {
    if (auto* const conv = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::nn::Sequential ResNetImpl::make_layer(int64_t planes, int64_t blocks, int64_t stride) {
  torch::nn::Sequential layer;
  for (int64_t i = 0; i < blocks; ++i) {
    torch::nn::Sequential shortcut{nullptr};
    if (i == 0 && (stride != 1 || planes_ != planes)) {
      shortcut = torch::nn::Sequential(convolution(planes_, planes, 1, stride), torch::nn::BatchNorm2d(planes));
    }
    layer->push_back(BasicBlock(planes_, planes, i == 0 ? stride : 1, shortcut));
    planes_ = planes;
  }
  return layer;
}

torch::Tensor ResNetImpl::forward(torch::Tensor images) {
  torch::Tensor x = bn1_(conv1_(images)).relu_();
  x = torch::max_pool2d(x, 3, 2, 1);
  x = layer4_->forward(layer3_->forward(layer2_->forward(layer1_->forward(x))));
  return fc_(torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1));
}
