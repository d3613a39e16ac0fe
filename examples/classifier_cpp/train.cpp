// Trains a classifier as a settings file says: examples/classifier/train_model.py's `train`, in C++.
//
//   classifier train examples/classifier/configs/resnet18.yaml --set data.folder=/data/photos
//   torchrun --no_python --nproc_per_node 2 classifier train CONFIG
//   penstock launch --run examples/classifier/job.yaml -n 4 -- classifier train CONFIG
//
// The same settings, batches, losses and lines; --weights FILE begins with weights that Python wrote (weights.h). At
// each epoch's end OUTPUT/weights.pt has the weights.
#include <fnmatch.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/torch/data_loader.h"
#include "place.h"
#include "resnet.h"
#include "settings.h"
#include "weights.h"

namespace {

using penstock::Error;
using penstock::ErrorKind;

struct Arguments {
  std::string config;
  std::vector<std::string> changes;
  std::string weights;
  std::string device = "auto";
  int64_t max_steps = 0;  // 0: all
};

Arguments arguments_of(const std::vector<std::string>& words) {
  const std::string usage =
      "usage: classifier train CONFIG [--set KEY=VALUE ...] [--weights FILE] [--max-steps N] [--device auto|cpu|cuda]";
  const auto refuse = [&](const std::string& what) { throw Error(ErrorKind::usage, what, usage); };
  if (words.size() < 2 || words[0] != "train") refuse("what is to be trained?");
  Arguments arguments;
  arguments.config = words[1];
  for (size_t i = 2; i < words.size(); i += 2) {
    if (i + 1 == words.size()) refuse("'" + words[i] + "' needs a value, or is not known");
    const std::string& value = words[i + 1];
    if (words[i] == "--set") {
      arguments.changes.push_back(value);
    } else if (words[i] == "--weights") {
      arguments.weights = value;
    } else if (words[i] == "--device") {
      arguments.device = value;
    } else if (words[i] == "--max-steps") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), arguments.max_steps);
      if (error != std::errc() || end != value.data() + value.size() || arguments.max_steps < 1) {
        refuse("--max-steps " + value + ": a whole number of at least 1");
      }
    } else {
      refuse("'" + words[i] + "' is not known");
    }
  }
  return arguments;
}

// The shortest digits that read back as the same number, which Python prints too.
std::string digits(double number) {
  char text[64];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number);
  return {text, end};
}

void say(const Place& place, const std::string& text) {
  if (!place.first()) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

penstock::torch::DataLoader open_data(const Settings& settings, const std::string& split, const Place& place) {
  penstock::DataLoaderOptions options;
  if (place.of_slurm()) {
    options.num_replicas = place.world_size();
    options.rank = place.rank();
    options.places_are_ranks = true;
  }
  const std::string size = std::to_string(settings.image_size);
  options.overrides = {"seed=" + std::to_string(settings.seed),
                       "splits." + split + ".batch_size=" + std::to_string(settings.batch_size),
                       "splits.train.pipeline.0.RandomResizedCrop.size=" + size,
                       "splits.val.pipeline.0.Resize.size=" +
                           std::to_string(std::lrint(static_cast<double>(settings.image_size) * 8 / 7)),
                       "splits.val.pipeline.1.CenterCrop.size=" + size};
  for (const std::string one : {"train", "val"}) {
    const std::string dataset = "splits." + one + ".dataset.";
    if (!settings.folder.empty()) options.overrides.push_back(dataset + "folder=" + settings.folder);
    if (!settings.lists.empty()) options.overrides.push_back(dataset + "list=" + settings.lists + "/" + one + ".txt");
  }
  options.overrides.insert(options.overrides.end(), settings.overrides.begin(), settings.overrides.end());
  options.on_warning = [](const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); };
  return penstock::torch::DataLoader(settings.job, split, options);
}

// Lists have numbers only; the names stand in a file beside them.
int64_t number_of_classes(const Settings& settings, const penstock::torch::DataLoader& data) {
  if (settings.lists.empty()) return static_cast<int64_t>(data.class_names().size());
  std::ifstream file(settings.lists + "/classes.txt");
  if (!file) throw Error(ErrorKind::config, "cannot read '" + settings.lists + "/classes.txt'", "`lists` writes it");
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

bool fits(const std::string& name, const std::string& pattern) {
  return name == pattern || name.starts_with(pattern + ".") ||
         fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

// Parameters whose name fits a pattern are left as they are.
size_t freeze(torch::nn::Module& model, const Stage& stage) {
  size_t frozen = 0;
  for (auto& one : model.named_parameters()) {
    const bool fit = std::any_of(stage.freeze.begin(), stage.freeze.end(),
                                 [&](const std::string& pattern) { return fits(one.key(), pattern); });
    one.value().set_requires_grad(!fit);
    if (fit) one.value().mutable_grad() = torch::Tensor();
    frozen += fit;
  }
  if (!stage.freeze.empty() && frozen == 0) {
    throw Error(ErrorKind::config, "'freeze' of stage " + stage.name + ": nothing is called so",
                "names of branches (layer1), of parameters, or patterns with *");
  }
  return frozen;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Stage& stage,
                                                      const std::vector<torch::Tensor>& parameters) {
  if (stage.optimizer == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(stage.rate(0)).momentum(stage.momentum).weight_decay(stage.weight_decay));
  }
  return std::make_unique<torch::optim::AdamW>(
      parameters, torch::optim::AdamWOptions(stage.rate(0)).weight_decay(stage.weight_decay));
}

// How many pictures of all processes have their label among the k best scores, for each k; last, how many there are.
std::vector<double> evaluate(ResNet& model, penstock::torch::DataLoader& val, const std::vector<int64_t>& top_k,
                             Place& place) {
  const torch::NoGradGuard no_grad;
  // Batch norm's means are each process's own: the first one's are everybody's.
  place.take_from_first(model->buffers());
  model->eval();
  std::vector<double> counts(top_k.size() + 1);
  for (auto& example : val) {
    const torch::Tensor valid = example.target >= 0;  // padding and unreadable pictures count nowhere
    const torch::Tensor labels = example.target.index({valid});
    const torch::Tensor scores = model->forward(example.data.to(place.device())).cpu().index({valid});
    if (labels.size(0) == 0) continue;
    const torch::Tensor ranked = std::get<1>(scores.topk(top_k.back()));
    for (size_t i = 0; i < top_k.size(); ++i) {
      const torch::Tensor right = (ranked.narrow(1, 0, top_k[i]) == labels.unsqueeze(1)).any(1);
      counts[i] += right.sum().item<double>();
    }
    counts.back() += static_cast<double>(labels.size(0));
  }
  return place.totals(counts);
}

// The k that there are so many classes for, 1 always among them.
std::vector<int64_t> top_k_of(const Settings& settings, int64_t classes) {
  std::vector<int64_t> all{1};
  for (const int64_t k : settings.top_k) {
    if (k >= 1 && k <= classes) all.push_back(k);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

ResNet build_network(const Settings& settings, int64_t classes, Place& place) {
  ResNet model(settings.network, classes);
  // A checkpoint wins over pretrained weights, and these over random ones.
  if (!settings.checkpoint.empty()) {
    load_all(*model, settings.checkpoint);
    say(place, "weights of the checkpoint " + settings.checkpoint);
  } else if (!settings.weights.empty()) {
    const auto [taken, of] = load_fitting(*model, settings.weights);
    say(place, std::to_string(taken) + " of " + std::to_string(of) + " weights from " + settings.weights);
  }
  model->to(place.device());
  place.take_from_first(model->parameters());
  return model;
}

// By the first, whose buffers are everybody's.
void save(ResNet& model, const Settings& settings, const Place& place) {
  if (place.first()) save_all(*model, settings.output + "/weights.pt");
}

void train(const Settings& settings, const Arguments& arguments) {
  Place place(arguments.device);
  if (place.first()) std::filesystem::create_directories(settings.output);  // what fails here has cost nothing yet
  torch::manual_seed(static_cast<uint64_t>(settings.seed));
  penstock::torch::DataLoader data = open_data(settings, "train", place), val = open_data(settings, "val", place);
  const int64_t classes = number_of_classes(settings, data);
  const std::vector<int64_t> top_k = top_k_of(settings, classes);
  ResNet model = build_network(settings, classes, place);
  torch::nn::CrossEntropyLoss criterion(torch::nn::CrossEntropyLossOptions().label_smoothing(settings.label_smoothing));

  int64_t epoch = 0, steps = 0;
  bool ended = false;
  for (const Stage& stage : settings.stages) {  // other parameters, another optimizer
    if (ended) break;
    const size_t frozen = freeze(*model, stage);
    std::vector<torch::Tensor> parameters = model->parameters();
    std::erase_if(parameters, [](const torch::Tensor& one) { return !one.requires_grad(); });
    const auto optimizer = optimizer_of(stage, parameters);
    say(place, "stage " + stage.name + ": " + std::to_string(stage.epochs) + " epochs, " + std::to_string(frozen) +
                   " parameters frozen");
    for (int64_t within = 0; within < stage.epochs && !ended; ++within, ++epoch) {
      for (auto& group : optimizer->param_groups()) group.options().set_lr(stage.rate(within));
      data.set_epoch(epoch);
      model->train();
      double lost = 0;
      int64_t batches = 0;
      for (auto& example : data) {
        const torch::Tensor loss =
            criterion(model->forward(example.data.to(place.device())), example.target.to(place.device()));
        optimizer->zero_grad();
        loss.backward();
        std::vector<torch::Tensor> gradients;
        for (const torch::Tensor& one : parameters) gradients.push_back(one.grad());
        place.mean(std::move(gradients));
        optimizer->step();
        const double step_loss = place.totals({loss.item<double>()})[0] / place.world_size();
        if (!std::isfinite(step_loss)) {  // the mean is everybody's, so all stop
          throw Error(ErrorKind::runtime, "the loss is " + digits(step_loss) + " in epoch " + std::to_string(epoch),
                      "a lower rate, perhaps");
        }
        lost += step_loss;
        ++batches;
        ++steps;
        if (arguments.max_steps) say(place, "step " + std::to_string(steps) + " loss " + digits(step_loss));
        ended = steps == arguments.max_steps;
        if (ended) break;
      }
      if (ended) break;
      const std::vector<double> counts = evaluate(model, val, top_k, place);
      std::string tops;
      for (size_t i = 0; i < top_k.size(); ++i) {
        char text[64];
        std::snprintf(text, sizeof text, " top-%d %.4f", static_cast<int>(top_k[i]),
                      counts[i] / std::max(1.0, counts.back()));
        tops += text;
      }
      say(place, "epoch " + std::to_string(epoch) + " (" + stage.name + ") : loss " +
                     digits(lost / static_cast<double>(batches)) + tops + " of " +
                     std::to_string(static_cast<int64_t>(counts.back())) + " pictures");
      save(model, settings, place);
    }
  }
  if (ended) save(model, settings, place);  // in the middle of an epoch
  place.leave();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = arguments_of({argv + 1, argv + argc});
    Settings settings = read_settings(arguments.config, arguments.changes);
    if (!arguments.weights.empty()) settings.checkpoint = arguments.weights;
    train(settings, arguments);
    return 0;
  } catch (const Error& problem) {
    std::fprintf(stderr, "classifier: %s\n", problem.what());
    return problem.exit_code();
  } catch (const std::exception& problem) {  // libtorch's
    std::fprintf(stderr, "classifier: %s\n", problem.what());
    return 1;
  }
}
