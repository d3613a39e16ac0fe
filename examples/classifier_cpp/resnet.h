// ResNet-18 and ResNet-34 (He et al., 2015), as torchvision has them: the same names of parameters, so that weights go
// from one to the other, and, with the same seed, the same first weights.
//
//   ResNet model("resnet18", 4);
//   auto scores = model->forward(images);           // [n, 3, h, w] -> [n, 4]
//
// Failure: penstock::Error(config) for another name.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <string>

struct ResNetImpl : torch::nn::Module {
  ResNetImpl(const std::string& name, int64_t classes);
  torch::Tensor forward(torch::Tensor images);

 private:
  torch::nn::Sequential make_layer(int64_t planes, int64_t blocks, int64_t stride);

  int64_t planes_ = 64;  // of what the next block is given
  torch::nn::Conv2d conv1_{nullptr};
  torch::nn::BatchNorm2d bn1_{nullptr};
  torch::nn::Sequential layer1_{nullptr}, layer2_{nullptr}, layer3_{nullptr}, layer4_{nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ResNet);
