// Prints what the samplers give: one query a line on stdin, one line of indices on stdout, for sampler_torch_test.py.
//
//   sequential N
//   random N seed epoch
//   distributed N num_replicas rank shuffle seed drop_last epoch
//   batches N num_replicas rank shuffle seed drop_last epoch batch_size batch_drop_last    batches end with '|'
//   plan N num_replicas rank shuffle seed drop_last epoch batch_size batch_drop_last       the same, from the Plan
//   permutations N count seed / replacement N count seed / subset seed index...
//   weighted count seed weight...
//   forward N seed / inside_out N seed
//   head N seed rule count        first `count` of a shuffle (rule torch_1 or torch_2_6), for sizes too large to print
// An error is printed as "error: message" on the line of its query.
#include <cstdint>
#include <exception>
#include <iostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "sampler/draws.h"
#include "sampler/permutation.h"
#include "sampler/plan.h"
#include "sampler/samplers.h"

namespace {

using namespace penstock;

struct Query {
  explicit Query(const std::string& line) : in(line) { in >> name; }

  template <class Value>
  Value next() {
    Value value{};
    if (!(in >> value)) throw std::invalid_argument("too few arguments for " + name);
    return value;
  }
  int64_t number() { return next<int64_t>(); }
  bool flag() { return next<int>() != 0; }

  std::istringstream in;
  std::string name;
};

void append(std::string& out, int64_t index) {
  out += std::to_string(index);
  out += ' ';
}

DistributedSampler read_distributed(Query& query) {
  const int64_t size = query.number();
  const int64_t num_replicas = query.number();
  const int64_t rank = query.number();
  const bool shuffle = query.flag();
  const auto seed = query.next<uint64_t>();
  const bool drop_last = query.flag();
  DistributedSampler sampler(size, num_replicas, rank, shuffle, seed, drop_last);
  sampler.set_epoch(query.number());
  return sampler;
}

RandpermRule read_rule(const std::string& name) {
  return name == "torch_1" ? RandpermRule::torch_1 : RandpermRule::torch_2_6;
}

std::string answer(Query& query) {
  std::string out;
  if (query.name == "sequential") {
    for (const int64_t index : SequentialSampler(query.number())) append(out, index);
  } else if (query.name == "random") {
    const int64_t size = query.number();
    RandomSampler sampler(size, query.next<uint64_t>());
    sampler.set_epoch(query.number());
    for (const int64_t index : sampler) append(out, index);
  } else if (query.name == "distributed") {
    for (const int64_t index : read_distributed(query)) append(out, index);
  } else if (query.name == "batches") {
    const DistributedSampler sampler = read_distributed(query);
    const int64_t batch_size = query.number();
    for (const std::vector<int64_t>& batch : BatchSampler(sampler, batch_size, query.flag())) {
      for (const int64_t index : batch) append(out, index);
      out += "| ";
    }
  } else if (query.name == "plan") {
    PlanSpec spec;
    spec.dataset_size = query.number();
    spec.num_replicas = query.number();
    const int64_t rank = query.number();
    spec.shuffle = query.flag();
    spec.seed = query.next<uint64_t>();
    spec.sampler_drop_last = query.flag();
    const int64_t epoch = query.number();
    spec.batch_size = query.number();
    spec.batch_drop_last = query.flag();
    const Plan plan(spec, epoch);
    for (int64_t step = 0; step < plan.steps(); ++step) {
      for (const PlannedSample& sample : plan.batch(step, rank)) append(out, sample.index);
      out += "| ";
    }
  } else if (query.name == "permutations" || query.name == "replacement") {
    const int64_t size = query.number();
    const int64_t count = query.number();
    const auto seed = query.next<uint64_t>();
    const bool whole = query.name == "permutations";
    const auto order = whole ? draw_permutations(size, count, seed) : draw_with_replacement(size, count, seed);
    for (const int64_t index : order) append(out, index);
  } else if (query.name == "subset") {
    const auto seed = query.next<uint64_t>();
    std::vector<int64_t> indices;
    for (int64_t index = 0; query.in >> index;) indices.push_back(index);
    for (const int64_t index : shuffled_subset(indices, seed)) append(out, index);
  } else if (query.name == "weighted") {
    const int64_t count = query.number();
    const auto seed = query.next<uint64_t>();
    std::vector<double> weights;
    for (std::string weight; query.in >> weight;) weights.push_back(std::stod(weight));
    for (const int64_t index : draw_weighted(weights, count, seed)) append(out, index);
  } else if (query.name == "forward" || query.name == "inside_out") {
    std::vector<uint32_t> order(static_cast<size_t>(query.number()));
    TorchGenerator generator(query.next<uint64_t>());
    if (query.name == "forward") {
      randperm_forward(std::span(order), generator);
    } else {
      randperm_inside_out(std::span(order), generator);
    }
    for (const uint32_t index : order) append(out, index);
  } else if (query.name == "head") {
    const int64_t size = query.number();
    const auto seed = query.next<uint64_t>();
    const Permutation order = Permutation::shuffled(size, seed, read_rule(query.next<std::string>()));
    const int64_t count = query.number();
    for (int64_t place = 0; place < count; ++place) append(out, order[place]);
  } else {
    throw std::invalid_argument("unknown query '" + query.name + "'");
  }
  return out;
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    Query query(line);
    try {
      std::cout << answer(query) << '\n';
    } catch (const std::exception& error) {
      const std::string message = error.what();
      std::cout << "error: " << message.substr(0, message.find('\n')) << '\n';
    }
  }
  return 0;
}
