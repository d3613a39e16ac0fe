// Files of indices and weights: what is read, what is noted of it, and what is refused.
#include "runtime/job/sampler_file.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/job/job_texts.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

namespace {

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string out = std::string("\x93NUMPY", 6) + version + '\0';
  const auto length = static_cast<uint32_t>(header.size());
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte) out += static_cast<char>(length >> (8 * byte) & 0xff);
  return out + header + data;
}
template <class Number>
std::string data_of(const std::vector<Number>& numbers) {
  std::string out(numbers.size() * sizeof(Number), '\0');
  std::memcpy(out.data(), numbers.data(), out.size());
  return out;
}
std::string header_of(const std::string& dtype, const std::string& shape) {
  return "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }   \n";
}

struct Files {
  std::string put(const std::string& name, const std::string& content) const {
    const std::string path = folder.path(name);
    write_file(path, {as_bytes_of(content)});
    return path;
  }
  TemporaryFolder folder;
};

ResolvedSplit with(const std::string& key, const std::string& path) {
  return resolve_split(
      parse_job(good_job, "/j/job.yaml", {"splits.train.sampler={shuffle: false, " + key + ": " + path + "}"}),
      "train");
}
SamplerNumbers read(const std::string& key, const std::string& path) {
  return read_sampler_file(with_sampler_file(with(key, path)));
}
Error refusal(const std::string& key, const std::string& path) {
  try {
    (void)with_sampler_file(with(key, path));
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::runtime, "nothing was refused");
}
bool has(const Error& error, const std::string& part) {
  return error.message().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the same indices in every format are one order") {
  const Files files;
  const std::vector<int64_t> indices{5, 0, 5, 4294967296};
  const std::string wide = files.put("a.npy", npy(header_of("<i8", "(4,)"), data_of(indices)));
  const std::string second = files.put("b.npy", npy(header_of("<i8", "(4,)"), data_of(indices), 2));
  const std::string text = files.put("c.txt", "5\n0\r\n\n  5 \n4294967296");
  std::vector<std::string> hashes;
  for (const std::string& path : {wide, second, text}) {
    CHECK(read("indices", path).indices == indices);
    const SamplerSpec sampler = with_sampler_file(with("indices", path)).split.sampler;
    CHECK(sampler.file_count == 4);
    hashes.push_back(sampler.file_hash);
  }
  CHECK(hashes[0].size() == 32);
  CHECK(hashes == std::vector<std::string>(3, hashes[0]));
  const std::string narrow = files.put("d.npy", npy(header_of("<i4", "(3,)"), data_of(std::vector<int32_t>{1, -2, 3})));
  CHECK(read("indices", narrow).indices == std::vector<int64_t>{1, -2, 3});  // the range is the dataset's affair
  CHECK(with_sampler_file(with("indices", narrow)).split.sampler.file_hash != hashes[0]);
}

TEST_CASE("weights") {
  const Files files;
  const std::vector<double> weights{0.25, 0, 1e300};
  CHECK(read("weights", files.put("a.npy", npy(header_of("<f8", "(3,)"), data_of(weights)))).weights == weights);
  CHECK(read("weights", files.put("b.txt", "0.25\n0\n1e300\n")).weights == weights);
  CHECK(read("weights", files.put("c.npy", npy(header_of("<f4", "(2,)"), data_of(std::vector<float>{1, 2.5F}))))
            .weights == std::vector<double>{1, 2.5});
  CHECK(
      read("weights", files.put("d.npy", npy(header_of("<i8", "(2,)"), data_of(std::vector<int64_t>{3, 0})))).weights ==
      std::vector<double>{3, 0});
}

TEST_CASE("a file that cannot be used is refused, by name and place") {
  const Files files;
  const std::string good = data_of(std::vector<int64_t>{1, 2});
  const std::vector<std::pair<std::string, std::string>> cases{
      {npy(header_of("<i8", "(3,)"), good), "promises 3 numbers, and it holds 2"},
      {npy(header_of("<i8", "(99999999999999999999,)"), good), "not one-dimensional"},
      {npy(header_of("<i8", "(-1,)"), good), "not one-dimensional"},
      {npy(header_of("<i8", "(1, 2)"), good), "not one-dimensional"},
      {npy(header_of("<i8", "()"), good), "not one-dimensional"},
      {npy(header_of("<f8", "(2,)"), good), "its dtype is '<f8'"},
      {npy(header_of(">i8", "(2,)"), good), "its dtype is '>i8'"},
      {npy(header_of("<i8", "(0,)"), ""), "it holds no number"},
      {npy("{'descr': ", good), "its header has no dtype"},
      {std::string("\x93NUMPY\1\0\xff\xff", 10) + std::string(20, ' '), "its header ends early"},
      {"12 34 56 78 90", "it does not begin as one"},
      {"", "it does not begin as one"}};
  for (const auto& [content, reason] : cases) {
    const std::string& why = reason;  // clang 14 captures no structured binding
    CAPTURE(why);
    const std::string path = files.put("bad.npy", content);
    const Error error = refusal("indices", path);
    CHECK(error.kind() == ErrorKind::dataset);
    CHECK(has(error, why));
    CHECK(has(error, path));
  }
  for (const auto& [content, reason] :
       std::vector<std::pair<std::string, std::string>>{{"1\n2\nthree\n", "line 3 is no whole number: 'three'"},
                                                        {"1 2\n", "line 1 is no whole number"},
                                                        {"1.5\n", "line 1 is no whole number"},
                                                        {"99999999999999999999\n", "line 1 is no whole number"},
                                                        {"\n\n", "it holds no number"}}) {
    const std::string& why = reason;
    CAPTURE(why);
    CHECK(has(refusal("indices", files.put("bad.txt", content)), why));
  }
  const Error missing = refusal("indices", files.folder.path("none.npy"));
  CHECK(missing.kind() == ErrorKind::dataset);
  CHECK(has(missing, "none.npy"));
}

TEST_CASE("every cut of a good file is refused or holds fewer numbers") {
  const Files files;
  const std::string whole = npy(header_of("<i8", "(2,)"), data_of(std::vector<int64_t>{1, 2}));
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(refusal("indices", files.put("cut.npy", whole.substr(0, length))).kind() == ErrorKind::dataset);
  }
}

TEST_CASE("a file that changes between two readers is refused") {
  const Files files;
  const std::string path = files.put("order.txt", "1\n2\n");
  const ResolvedSplit split = with_sampler_file(with("indices", path));
  CHECK(read_sampler_file(split).indices.size() == 2);
  files.put("order.txt", "2\n1\n");
  CHECK_THROWS_WITH_AS(read_sampler_file(split), doctest::Contains("holds other numbers"), Error);
  CHECK_THROWS_WITH_AS(with_sampler_file(split), doctest::Contains("sampler.file_hash says"), Error);
}

TEST_CASE("the keys travel, and say how long an epoch is") {
  const Files files;
  const ResolvedSplit indices = with_sampler_file(with("indices", files.put("order.txt", "1\n2\n1\n")));
  CHECK(split_from_json(canonical_json(indices)).split.sampler.file_hash == indices.split.sampler.file_hash);
  CHECK(canonical_json(split_from_json(canonical_json(indices))) == canonical_json(indices));
  CHECK(plan_spec(indices, 100, 2).dataset_size == 3);
  const std::string weights = files.put("weights.txt", "1\n2\n");
  CHECK(plan_spec(with_sampler_file(with("weights", weights)), 2, 1).dataset_size == 2);
  CHECK(plan_spec(with_sampler_file(with("num_samples: 7, weights", weights)), 2, 1).dataset_size == 7);
  CHECK(first_difference(canonical_json(indices), canonical_json(with("indices", "/other"))).find("sampler") !=
        std::string::npos);
}

TEST_CASE("combinations that make no order are complained of") {
  const auto complaint = [](const std::string& sampler, const std::string& more = "x=1") {
    std::vector<std::string> overrides{"splits.train.sampler=" + sampler};
    if (more != "x=1") overrides.push_back(more);
    try {
      (void)parse_job(good_job, "/j/job.yaml", overrides);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  const auto holds = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(holds(complaint("{indices: a, weights: b}"), "one of 'indices', 'weights' and 'program'"));
  CHECK(holds(complaint("{weights: b, shuffle: true}"), "'shuffle' has no effect with 'weights'"));
  CHECK(holds(complaint("{program: true, shuffle: true}"), "'shuffle' has no effect with 'program'"));
  CHECK(holds(complaint("{weights: b, replacement: false}"), "'replacement: false' is not supported"));
  CHECK(holds(complaint("{num_samples: 4}"), "belongs to 'weights'"));
  CHECK(holds(complaint("{replacement: true}"), "belongs to 'weights'"));
  CHECK(complaint("{shuffle: true, replacement: false}") == "nothing was refused");  // torch's RandomSampler says so
  CHECK(holds(complaint("{file_hash: ab}"), "belongs to 'indices' or 'weights'"));
  CHECK(holds(complaint("{weights: b}", "splits.train.mode=eval"), "an eval split counts every sample once"));
  CHECK(holds(complaint("{program: true}", "splits.train.tail=pad"), "each replica's own share"));
  CHECK(holds(complaint("{indices: a, shuffle: true}"), "nothing was refused"));
  CHECK(parse_job(good_job, "/j/job.yaml", {"splits.train.sampler={indices: a/b.npy}"})
            .splits.at("train")
            .sampler.indices != "a/b.npy");  // made absolute
}

TEST_CASE("replicas of several ranks") {
  Job job;
  job.roles.ranks_per_replica = 2;
  CHECK(replicas_of(job, 6) == 3);
  CHECK_THROWS_WITH_AS(replicas_of(job, 3), doctest::Contains("does not divide the 3 trainers"), Error);
}
