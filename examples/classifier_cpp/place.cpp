#include "place.h"

#include <torch/csrc/utils/tensor_flatten.h>
#include <torch/cuda.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef CLASSIFIER_WITH_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#ifdef CLASSIFIER_WITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "runtime/base/error.h"

namespace {

[[noreturn]] void wrong(const std::string& what, const std::string& remedy) {
  throw penstock::Error(penstock::ErrorKind::usage, what, remedy);
}

std::string text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

int number_of(const char* name, int least) {
  const std::string text = text_of(name);
  char* rest = nullptr;
  const long value = std::strtol(text.c_str(), &rest, 10);
  if (text.empty() || *rest || value < least || value > 1'000'000) {
    wrong(std::string(name) + " is '" + text + "'", "torchrun, `penstock run` and srun set it to a number");
  }
  return static_cast<int>(value);
}

}  // namespace

class Meeting {
 public:
  Meeting(int rank, int world_size, [[maybe_unused]] bool gpu) : rank_(rank), world_size_(world_size) {
    const std::string host = text_of("MASTER_ADDR");
    if (host.empty()) wrong("there are several processes, and no MASTER_ADDR", "set MASTER_ADDR and MASTER_PORT");
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(number_of("MASTER_PORT", 1));
    // torchrun's own process has the store already.
    options.isServer = rank == 0 && text_of("TORCHELASTIC_USE_AGENT_STORE") != "True";
    const std::string attempt = text_of("TORCHELASTIC_RESTART_COUNT");
    store_ = c10::make_intrusive<c10d::PrefixStore>("classifier" + attempt,
                                                    c10::make_intrusive<c10d::TCPStore>(host, options));
#ifdef CLASSIFIER_WITH_NCCL
    if (gpu) nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store_, rank, world_size);
#endif
#ifdef CLASSIFIER_WITH_GLOO
    if (!gpu) {
      const auto gloo = c10d::ProcessGroupGloo::Options::create();
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
      gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, rank, world_size, gloo);
    }
#endif
    store_->add("there", 1);
    wait_for_all("there", std::chrono::minutes(10));
  }

  // The store is in one of them, which leaves last.
  void leave() {
    store_->add("done", 1);
    if (rank_ == 0) wait_for_all("done", std::chrono::seconds(30));
  }

  void sum(torch::Tensor& tensor) {
    [[maybe_unused]] std::vector<torch::Tensor> one{tensor};
#ifdef CLASSIFIER_WITH_NCCL
    if (nccl_) return void(nccl_->allreduce(one)->wait());
#endif
#ifdef CLASSIFIER_WITH_GLOO
    if (gloo_) return void(gloo_->allreduce(one)->wait());
#endif
    sum_through_store(tensor);
  }

 private:
  // A store takes values of up to 8 MiB.
  static constexpr size_t kPiece = size_t{4} << 20;

  void wait_for_all(const std::string& key, std::chrono::seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (store_->add(key, 0) < world_size_) {
      if (std::chrono::steady_clock::now() > deadline) {
        wrong("of " + std::to_string(world_size_) + " processes " + std::to_string(store_->add(key, 0)) + " are " + key,
              "do all have the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT?");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::string key_of(int64_t round, int rank, size_t piece) const {
    return std::to_string(round) + "/" + std::to_string(rank) + "/" + std::to_string(piece);
  }

  void sum_through_store(torch::Tensor& tensor) {
    torch::Tensor own = tensor.detach().cpu().contiguous();
    const auto* const bytes = static_cast<const uint8_t*>(own.data_ptr());
    const size_t count = static_cast<size_t>(own.numel()) * own.element_size();
    const size_t pieces = (count + kPiece - 1) / kPiece;
    for (size_t i = 0; i < pieces; ++i) {
      store_->set(key_of(round_, rank_, i),
                  std::vector<uint8_t>(bytes + i * kPiece, bytes + std::min(count, (i + 1) * kPiece)));
    }
    torch::Tensor sum = torch::zeros_like(own), other = torch::empty_like(own);
    for (int rank = 0; rank < world_size_; ++rank) {  // in one order, so that all have the same sum
      for (size_t i = 0; i < pieces; ++i) {
        const std::vector<uint8_t> piece = store_->get(key_of(round_, rank, i));
        std::memcpy(static_cast<uint8_t*>(other.data_ptr()) + i * kPiece, piece.data(), piece.size());
      }
      sum += other;
    }
    tensor.copy_(sum);
    // Everybody has given what this round needs, so everybody has read the one before.
    for (size_t i = 0; i < pieces_before_; ++i) store_->deleteKey(key_of(round_ - 1, rank_, i));
    pieces_before_ = pieces;
    ++round_;
  }

  int rank_;
  int world_size_;
  c10::intrusive_ptr<c10d::Store> store_;
#ifdef CLASSIFIER_WITH_NCCL
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
#endif
#ifdef CLASSIFIER_WITH_GLOO
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
#endif
  int64_t round_ = 0;
  size_t pieces_before_ = 0;
};

Place::Place(const std::string& device) {
  // A batch script has Slurm's numbers too, and is one process: only srun's tasks have a step.
  if (!text_of("RANK").empty() && !text_of("WORLD_SIZE").empty()) {
    rank_ = number_of("RANK", 0);
    world_size_ = number_of("WORLD_SIZE", 1);
    local_rank_ = text_of("LOCAL_RANK").empty() ? 0 : number_of("LOCAL_RANK", 0);
  } else if (!text_of("SLURM_STEP_ID").empty() && !text_of("SLURM_PROCID").empty()) {
    rank_ = number_of("SLURM_PROCID", 0);
    world_size_ = number_of("SLURM_NTASKS", 1);
    local_rank_ = number_of("SLURM_LOCALID", 0);
    of_slurm_ = true;
  }
  if (rank_ >= world_size_)
    wrong("RANK " + std::to_string(rank_) + " of WORLD_SIZE " + std::to_string(world_size_), "ranks count from 0");
  if (device != "auto" && device != "cpu" && device != "cuda" && !device.starts_with("cuda:")) {
    wrong("--device " + device, "say auto, cpu, cuda or cuda:1");
  }
  const bool gpu = device == "auto" ? torch::cuda::is_available() : device != "cpu";
  if (gpu) {
    if (!torch::cuda::is_available()) {
      wrong("--device " + device + ": libtorch sees no GPU here", "--device cpu trains without");
    }
    device_ = device.find(':') == std::string::npos
                  ? torch::Device(torch::kCUDA, static_cast<torch::DeviceIndex>(local_rank_))
                  : torch::Device(device);
    if (device_.index() >= static_cast<int>(torch::cuda::device_count())) {
      wrong("there is no GPU of number " + std::to_string(device_.index()) + ": this node has " +
                std::to_string(torch::cuda::device_count()),
            "start as many processes a node as it has GPUs");
    }
  }
  if (world_size_ > 1) meeting_ = std::make_unique<Meeting>(rank_, world_size_, gpu);
}

Place::~Place() = default;

void Place::leave() {
  if (meeting_) meeting_->leave();
}

void Place::sum(std::vector<torch::Tensor> tensors) {
  if (!meeting_ || tensors.empty()) return;
  const torch::NoGradGuard no_grad;
  torch::Tensor flat = torch::utils::flatten_dense_tensors(tensors);
  meeting_->sum(flat);
  const std::vector<torch::Tensor> sums = torch::utils::unflatten_dense_tensors(flat, tensors);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(sums[i]);
}

void Place::mean(std::vector<torch::Tensor> tensors) {
  if (!meeting_) return;
  // Divided first, as DistributedDataParallel does.
  for (torch::Tensor& tensor : tensors) tensor.div_(world_size_);
  sum(std::move(tensors));
}

void Place::take_from_first(std::vector<torch::Tensor> tensors) {
  if (!meeting_) return;
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& tensor : tensors) {
    torch::Tensor given = first() ? tensor.detach().clone() : torch::zeros_like(tensor);
    meeting_->sum(given);
    tensor.copy_(given);
  }
}

std::vector<double> Place::totals(const std::vector<double>& numbers) {
  torch::Tensor sums = torch::tensor(numbers, torch::kFloat64).to(device_);
  if (meeting_) meeting_->sum(sums);
  sums = sums.cpu();
  return {sums.data_ptr<double>(), sums.data_ptr<double>() + sums.numel()};
}
