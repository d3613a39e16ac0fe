// Hostile job files: refused quickly, without much memory, and never with a crash. With PENSTOCK_FULL=1 the large ones are as large
// as a job file may be.
#include <doctest/doctest.h>

#include <cstdlib>
#include <ctime>
#include <random>

#include "tests/job/job_texts.h"
#include "tests/support/sanitized.h"

namespace config_limits_test {

using namespace penstock;

namespace {

const bool kFull = std::getenv("PENSTOCK_FULL") != nullptr;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

// CPU time: tests beside this one take nothing of it.
double seconds_of(const std::string& text, std::string& said) {
  const std::clock_t begin = std::clock();
  said = complaint(text);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

}  // namespace

TEST_CASE("a file beyond 1 MiB is refused") {
  CHECK(contains(complaint(with_split("#" + std::string(size_t{1} << 20, 'x') + "\n")), "larger than 1 MiB"));
  CHECK(complaint(with_split("#" + std::string(1000000, 'x') + "\n")) == "accepted");
}

TEST_CASE("nesting beyond 32 levels is refused, however it is written") {
  for (const char* level : {"[", "{", "{a: ", "[{a: ", "- ", "? ", "[\n", "{? ", "- - ", "[[], ", "- [", "- ? "}) {
    for (const int times : {40, 10000}) {
      std::string said;
      const double seconds = seconds_of("splits: \n " + repeated(level, times), said);
      INFO(level << " x " << times << ": " << said);
      CHECK(said != "accepted");
      if (std::string(level) != "{? " && std::string(level) != "? ")
        CHECK(contains(said, "nested deeper than 32 levels"));
      CHECK(seconds < 2 * kSanitizedFactor);
    }
  }
  std::string block;  // by indentation
  for (int i = 0; i < 1000; ++i) block += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  CHECK(contains(complaint(block), "nested deeper than 32 levels"));
  // Brackets that close again are not depth.
  CHECK(complaint(with_split("# " + repeated("[]", 1000) + "\n")) == "accepted");
}

TEST_CASE("aliases are refused where they stand, so nothing multiplies") {
  const std::string bomb =
      "a: &a [x,x,x,x,x,x,x,x,x]\n"
      "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
      "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
      "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
      "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\n"
      "f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
      "g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n"
      "h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n";
  CHECK(bomb.size() < 308);
  std::string said;
  CHECK(seconds_of(bomb, said) < 1);
  CHECK(contains(said,
                 "job.yaml:2:8: error: aliases are not supported in job files\n"
                 "    2 | b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
                 "      |        ^~ write the value again"));
  CHECK(contains(said, "anchors are not supported"));
  // A key that holds an alias is complained of once, not for its type as well.
  CHECK(complaint(with_split("name: &n x\nseed: *n\n")) ==
        "job.yaml:1:7: error: anchors are not supported in job files\n"
        "    1 | name: &n x\n"
        "      |       ^~ write the value where it is needed\n"
        "job.yaml:2:7: error: aliases are not supported in job files\n"
        "    2 | seed: *n\n"
        "      |       ^~ write the value again\n"
        "2 errors");
  CHECK(contains(complaint(with_split("name: !!binary x\n")), "tags are not supported"));
}

TEST_CASE("large files of nonsense take little time and give short messages") {
  // A part of the limit of 1 MiB; time that grows with the square is seen in a fourth as well.
  const int share = kFull ? 1 : 4;
  const int most = 900000 / share;
  const auto times = [&](int n) { return n / share; };
  const auto bytes = static_cast<size_t>(most);
  std::string keys;
  for (int i = 0; keys.size() < bytes; ++i) keys += "k" + std::to_string(i) + ": 1\n";
  std::string splits = "splits:\n";
  for (int i = 0; splits.size() < bytes; ++i) splits += "  s" + std::to_string(i) + ": {x: 1}\n";
  const std::string files[] = {keys,
                               splits,
                               with_split(std::string(bytes, ' ') + "\n"),
                               repeated("- x\n", times(200000)),
                               repeated("seed: 1\n", times(100000)),
                               "seed: [" + repeated("1,", times(400000)) + "]",
                               "seed: " + std::string(bytes, 'a'),
                               "seed: \"" + repeated("\\n", times(400000)) + "\"",
                               std::string(bytes, 'a') + ": 1",
                               repeated("a: ", times(300000)),
                               repeated("[]", times(400000)),
                               repeated("!", most),
                               repeated("%", most),
                               repeated("&a ", times(300000)),
                               repeated("\n", most),
                               repeated("{}\n---\n", times(100000)),
                               split_of("    pipeline: [" + repeated("Resize,", times(100000)) + "]\n")};
  for (const std::string& file : files) {
    std::string said;
    const double seconds = seconds_of(file, said);
    INFO(file.substr(0, 40) << ": " << seconds << " s: " << said.substr(0, 200));
    CHECK((said.size() < 20000 || said == "accepted"));
    CHECK(!contains(said, "WRONG KIND"));
    CHECK(seconds < 10.0 / share * kSanitizedFactor);
  }
}

TEST_CASE("overrides are bounded as files are") {
  CHECK(contains(complaint(good_job, {repeated("a.", 1000) + "b=1"}), "more than 32 levels"));
  CHECK(contains(complaint(good_job, {"seed=" + repeated("[", 1000)}), "nested deeper than 32 levels"));
  CHECK(contains(complaint(good_job, {"seed=" + std::string(size_t{2} << 20, '1')}), "larger than 1 MiB"));
}

TEST_CASE("random mutations of a good job either parse or are complained of") {
  const uint64_t seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  const std::string good = good_job;
  const std::string alphabet = "{}[]:,-?&*!|>'\"%@`#\n\t \\~=.0123456789abcEe\xC3\xA9\xFF\x01";
  int accepted = 0;
  int refused = 0;
  const int rounds = kFull ? 4000 : 1200;
  for (int round = 0; round < rounds; ++round) {
    std::string text = good;
    const size_t edits = 1 + random() % 2;
    for (size_t i = 0; i < edits; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = alphabet[random() % alphabet.size()]; break;
        case 1: text.insert(at, 1, alphabet[random() % alphabet.size()]); break;
        case 2: text.erase(at, 1 + random() % 5); break;
        default: text.insert(at, good.substr(random() % good.size(), random() % 30));
      }
    }
    std::string said;
    CHECK_NOTHROW(said = complaint(text));
    said == "accepted" ? ++accepted : ++refused;
    if (said.find("WRONG KIND") != std::string::npos || said.empty()) {
      INFO(text);
      FAIL_CHECK(said);
    }
  }
  MESSAGE(accepted, " parsed, ", refused, " refused");
  CHECK(accepted > (kFull ? 100 : 15));  // both kinds of outcome are met
  CHECK(refused > rounds / 4);
}

}  // namespace config_limits_test
