// What tests/bindings/torch_test.py asks of bindings/torch, one command a question; answers are lines of text.
//
//   torch_program hash JOB SPLIT [--soft] [--channels-last] [--attach] [KEY=VALUE ...]
//   torch_program zero_copy|outlive|hold|adapter|resume JOB
//
// A check that fails ends the program with the line and 1; an Error of penstock's with its text and its exit code.
#include <torch/torch.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bindings/torch/data_loader.h"
#include "bindings/torch/dataset.h"

namespace {

#define CHECK_TRUE(condition)                                           \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::printf("line %d: %s does not hold\n", __LINE__, #condition); \
      std::exit(1);                                                     \
    }                                                                   \
  } while (false)

// FNV-1a over the elements' bytes in logical order, which Python computes alike.
class Hash {
 public:
  void add(const ::torch::Tensor& tensor) {
    const ::torch::Tensor flat = tensor.contiguous();
    const auto* bytes = static_cast<const uint8_t*>(flat.data_ptr());
    add(bytes, static_cast<size_t>(flat.numel()) * static_cast<size_t>(flat.element_size()));
  }
  void add(const uint8_t* bytes, size_t count) {
    for (size_t i = 0; i < count; i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + i, std::min<size_t>(8, count - i));
      value_ = (value_ ^ word) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

uint64_t hash_of(const ::torch::Tensor& tensor) {
  Hash hash;
  hash.add(tensor);
  return hash.value();
}

std::vector<uint64_t> whole_epoch(penstock::torch::DataLoader& loader) {
  std::vector<uint64_t> hashes;
  for (auto& example : loader) hashes.push_back(hash_of(example.data));
  return hashes;
}

bool inside(const ::torch::Tensor& tensor, const penstock::TensorView& view) {
  return tensor.data_ptr() == view.data;
}

// A line for each batch: epoch, step, types, sizes, hashes.
int hash(const std::string& job, const std::string& split, const std::vector<std::string>& words) {
  penstock::DataLoaderOptions options;
  bool channels_last = false;
  for (const std::string& word : words) {
    if (word == "--channels-last") {
      options.channels_last = channels_last = true;
    } else if (word == "--attach") {
      options.attach = true;
    } else {
      options.overrides.push_back(word);
    }
  }
  penstock::torch::DataLoader loader(job, split, options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& example : loader) {
      CHECK_TRUE(inside(example.data, example.batch.image()) && inside(example.target, example.batch.label()));
      CHECK_TRUE(example.data.is_contiguous(channels_last ? ::torch::MemoryFormat::ChannelsLast
                                                          : ::torch::MemoryFormat::Contiguous));
      Hash indices;
      indices.add(reinterpret_cast<const uint8_t*>(example.batch.indices()),
                  static_cast<size_t>(example.batch.size()) * sizeof(int64_t));
      std::printf("%" PRId64 " %" PRId64 " %s %s %" PRId64 " %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %" PRId64
                  "\n",
                  example.batch.epoch(), example.batch.step(), ::torch::toString(example.data.scalar_type()),
                  ::torch::toString(example.target.scalar_type()), example.target.dim(), hash_of(example.data),
                  hash_of(example.target), indices.value(), example.batch.num_valid());
    }
  }
  return 0;
}

// Batch buffers come again in later batches, at the same addresses: nothing lies between.
int zero_copy(const std::string& job) {
  penstock::torch::DataLoader loader(job, "train");
  std::set<const void*> places;
  int batches = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& example : loader) {
      CHECK_TRUE(example.data.data_ptr() == example.batch.image().data);
      places.insert(example.data.data_ptr());
      example.data.zero_();  // the program's to write to
      CHECK_TRUE(*example.batch.image().as<float>() == 0.0f);
      ++batches;
    }
  }
  std::printf("%d batches at %zu addresses\n", batches, places.size());
  CHECK_TRUE(places.size() * 2 <= static_cast<size_t>(batches));
  return 0;
}

// Tensors, views of them and what autograd saved stay as they were when loader, example and batch are gone.
int outlive(const std::string& job) {
  std::optional<penstock::torch::DataLoader> loader(std::in_place, job, "train");
  const std::vector<uint64_t> expected = whole_epoch(*loader);
  loader->set_epoch(0);
  penstock::torch::ExampleStream stream = loader->start();
  ::torch::Tensor whole = stream.next()->data;
  const uint64_t second_image = hash_of(whole[1]);
  ::torch::Tensor view = stream.next()->data[1];
  const uint64_t view_hash = hash_of(view);
  const void* const held = whole.data_ptr();
  // Meanwhile other batches come and go, and none of them in the memory that is held.
  while (auto example = stream.next()) CHECK_TRUE(example->data.data_ptr() != held);
  stream = {};
  loader.reset();
  CHECK_TRUE(hash_of(whole) == expected[0] && hash_of(whole[1]) == second_image && hash_of(view) == view_hash);
  std::thread([&whole] { whole = ::torch::Tensor(); }).join();  // dropped in another thread

  // What backward() needs is kept by autograd alone.
  loader.emplace(job, "train");
  ::torch::Tensor scale = ::torch::ones({1}, ::torch::requires_grad());
  ::torch::Tensor loss;
  double sum = 0;
  {
    auto example = *loader->start().next();
    sum = example.data.sum().item<double>();
    loss = (example.data * scale).sum();
  }
  loader.reset();
  loss.backward();
  CHECK_TRUE(std::abs(scale.grad().item<double>() - sum) <= 1e-3 * std::abs(sum) + 1e-2);
  std::printf("outlived\n");
  return 0;
}

int hold(const std::string& job) {
  penstock::torch::DataLoader loader(job, "train");
  std::vector<::torch::Tensor> kept;
  try {
    for (int epoch = 0; epoch < 4; ++epoch) {
      for (auto& example : loader) kept.push_back(example.data[0]);  // a view of one image is enough
    }
  } catch (const penstock::Error& problem) {
    for (const std::string& text : loader.warnings()) std::printf("warning: %s\n", text.c_str());
    std::printf("kept %zu, then kind %d: %s\n", kept.size(), static_cast<int>(problem.kind()), problem.what());
    kept.clear();
    loader.set_epoch(0);
    std::printf("and %zu batches once they are dropped\n", whole_epoch(loader).size());
    return 0;
  }
  std::printf("all %zu were kept\n", kept.size());
  return 1;
}

std::vector<uint64_t> take(penstock::torch::Dataset dataset, size_t workers, size_t count = 1000) {
  auto loader = ::torch::data::make_data_loader(
      dataset, ::torch::data::DataLoaderOptions(dataset.batch_size()).workers(workers).max_jobs(1));
  std::vector<uint64_t> hashes;
  for (auto& example : *loader) {
    CHECK_TRUE(example.target.size(0) == example.data.size(0));
    hashes.push_back(hash_of(example.data));
    if (hashes.size() == count) break;
  }
  return hashes;
}

void save(const penstock::torch::Dataset& dataset, const char* file) {
  ::torch::serialize::OutputArchive archive;
  dataset.save(archive);
  archive.save_to(file);
}

penstock::torch::Dataset loaded(const std::string& job, const char* file) {
  ::torch::serialize::InputArchive archive;
  archive.load_from(file);
  penstock::torch::Dataset dataset(job, "train");
  dataset.load(archive);
  return dataset;
}

int adapter(const std::string& job) {
  penstock::torch::DataLoader plain(job, "train");
  const std::vector<uint64_t> first = whole_epoch(plain), second = whole_epoch(plain);
  for (const size_t workers : {0, 1}) {
    penstock::torch::Dataset dataset(job, "train");
    CHECK_TRUE(*dataset.size() == static_cast<size_t>(plain.num_samples()));
    CHECK_TRUE(take(dataset, workers) == first);
    CHECK_TRUE(take(dataset, workers) == second);  // begin() was the next epoch
  }
  // In mid-epoch, into an archive and out of it: into another process' dataset, as it were.
  penstock::torch::Dataset dataset(job, "train");
  take(dataset, 0);
  CHECK_TRUE(take(dataset, 0, 2) == std::vector<uint64_t>(second.begin(), second.begin() + 2));
  save(dataset, "middle.pt");
  penstock::torch::Dataset resumed = loaded(job, "middle.pt");
  CHECK_TRUE(take(resumed, 0) == std::vector<uint64_t>(second.begin() + 2, second.end()));
  const std::vector<uint64_t> third = whole_epoch(plain);
  // At an epoch's end the state is the next one's beginning.
  save(resumed, "end.pt");
  CHECK_TRUE(take(loaded(job, "end.pt"), 0) == third);
  // set_epoch() with the loaded epoch changes nothing, with another it wins; either way it is used up.
  for (const int64_t epoch : {1, 2}) {
    penstock::torch::Dataset told = loaded(job, "middle.pt");
    told.loader().set_epoch(epoch);
    const std::vector<uint64_t> rest(second.begin() + 2, second.end());
    CHECK_TRUE(take(told, 0) == (epoch == 1 ? rest : third));
    CHECK_TRUE(told.loader().epoch() == epoch + 1);
  }
  // A transform of libtorch's on top, of whole batches.
  using Batches = ::torch::data::transforms::BatchLambda<::torch::data::Example<>, ::torch::data::Example<>>;
  penstock::torch::Dataset source(job, "train");
  const size_t own_size = source.batch_size();
  auto negated = ::torch::data::make_data_loader(std::move(source).map(Batches([](::torch::data::Example<> example) {
    example.data.neg_();
    return example;
  })),
                                                 ::torch::data::DataLoaderOptions(own_size));
  CHECK_TRUE(hash_of(-negated->begin()->data) == first[0]);

  try {
    take(penstock::torch::Dataset(job, "train"), 0, 0);
    auto wrong = ::torch::data::make_data_loader(penstock::torch::Dataset(job, "train"), 5);
    (void)wrong->begin()->data;
    std::printf("a batch size of 5 was accepted\n");
    return 1;
  } catch (const penstock::Error& problem) {
    std::printf("kind %d: %s\n", static_cast<int>(problem.kind()), problem.what());
  }
  try {
    ::torch::serialize::OutputArchive other;
    other.write("weights", ::torch::ones({2}));
    other.save_to("other.pt");
    loaded(job, "other.pt");
    return 1;
  } catch (const penstock::Error& problem) {
    std::printf("kind %d: %s\n", static_cast<int>(problem.kind()), problem.what());
  }
  return 0;
}

int resume(const std::string& job) {
  penstock::torch::DataLoader loader(job, "train");
  whole_epoch(loader);
  const std::vector<uint64_t> second = whole_epoch(loader);
  const std::string state = loader.state(1, 3);
  penstock::torch::DataLoader other(job, "train");
  const penstock::Cursor next = other.resume(state);
  CHECK_TRUE((next == penstock::Cursor{1, 3}));
  std::vector<uint64_t> rest;
  for (auto i = other.begin_at(next.epoch, next.step); i != other.end(); ++i) rest.push_back(hash_of(i->data));
  CHECK_TRUE(rest == std::vector<uint64_t>(second.begin() + 3, second.end()));
  // Copies of an iterator are one iteration, and there is nothing at its end.
  auto one = other.begin_at(1, 0);
  auto copy = one;
  ++copy;
  CHECK_TRUE(hash_of(one->data) == second[1]);
  while (one != other.end()) ++one;
  CHECK_TRUE(copy == other.end());
  try {
    (void)copy->data;
    return 1;
  } catch (const penstock::Error&) {
  }
  // And moved: loader, stream and place go along.
  penstock::torch::DataLoader moved(std::move(other));
  CHECK_TRUE(moved.epoch() == 2 && moved.size() == static_cast<int64_t>(second.size()) && moved.embedded());
  try {
    penstock::torch::DataLoader(job, "train", {}, penstock::torch::Fields{"image", "depth"});
    return 1;
  } catch (const penstock::Error& problem) {
    std::printf("kind %d: %s\n", static_cast<int>(problem.kind()), problem.what());
  }
  return 0;
}

int answer(const std::vector<std::string>& words) {
  const std::string& command = words.at(0);
  if (command == "hash") return hash(words.at(1), words.at(2), {words.begin() + 3, words.end()});
  if (command == "zero_copy") return zero_copy(words.at(1));
  if (command == "outlive") return outlive(words.at(1));
  if (command == "hold") return hold(words.at(1));
  if (command == "adapter") return adapter(words.at(1));
  if (command == "resume") return resume(words.at(1));
  std::printf("there is no '%s'\n", command.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return answer({argv + 1, argv + argc});
  } catch (const penstock::Error& problem) {
    std::printf("%s\n", problem.what());
    return problem.exit_code();
  }
}
