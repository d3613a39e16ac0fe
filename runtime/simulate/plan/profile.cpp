#include "runtime/simulate/plan/profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/histogram_json.h"
#include "runtime/base/json_text.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 2;
constexpr double kLargestNumber = 1e15;  // of any number
constexpr size_t kMostBytes = size_t{64} << 20;

// What no report says: measured on an EPYC at 2.4 GHz (bench_coordinator: 5 us a chunk, 3 messages each).
constexpr Nanoseconds kCoordinatorEvent = 1'600;
constexpr Nanoseconds kLoaderChunk = 30'000;
constexpr Nanoseconds kHandOver = 100'000;

[[noreturn]] void unreadable(const std::string& name, const std::string& why) {
  throw Error(ErrorKind::runtime, "cannot read the profile '" + name + "': " + why,
              "`penstock profile JOB -o FILE` makes one, and so does `penstock run --profile FILE`");
}

// The parts of one file, read and written by the same list, so that they cannot drift apart.
template <class Profile_, class Number>
void numbers(Profile_& profile, Number&& number) {
  number("dataset_size", profile.dataset_size);
  number("payload_bytes", profile.payload_bytes);
  number("pixels", profile.pixels);
  number("ns_per_byte", profile.ns_per_byte);
  number("coordinator_event_ns", profile.overhead.event_ns);
  number("grant_ns", profile.overhead.grant_ns);
  number("loader_chunk_ns", profile.overhead.loader_chunk_ns);
  number("receiver_chunk_ns", profile.overhead.receiver_chunk_ns);
  number("receiver_ns_per_byte", profile.overhead.receiver_ns_per_byte);
  number("hand_over_ns", profile.overhead.hand_over_ns);
  number("local_message_ns", profile.overhead.local_message_ns);
  number("epoch_ns", profile.overhead.epoch_ns);
}
template <class Profile_, class Text>
void texts(Profile_& profile, Text&& text) {
  text("made_by", profile.made_by);
  text("machine", profile.machine);
  text("date", profile.date);
  text("version", profile.version);
  text("job", profile.job);
  text("split", profile.split);
  text("dataset", profile.dataset);
}
template <class Profile_, class One>
void histograms(Profile_& profile, One&& one) {
  one("sample_ns", profile.sample_ns);
  one("sample_bytes", profile.sample_bytes);
  one("step_ns", profile.step_ns);
}

std::string hash_of(Json json) {
  json.erase("hash");
  return hash128(json_text(json)).hex();
}

void add(Histogram& sum, const Json& report, const char* key) {
  if (!report.contains(key)) return;
  if (const auto one = histogram_from(report[key])) sum.add(*one);
}

// The slope of the line that is nearest to all samples (least squares), but no steeper than a line that explains all of
// the times' mean, or all of their spread.
double slope(const Profile& profile, double ns_bytes) {
  const Histogram& ns = profile.sample_ns;
  const Histogram& bytes = profile.sample_bytes;
  const double spread = bytes.variance();
  if (!(spread > 0) || bytes.count() != ns.count()) return 0;
  const double together = ns_bytes / static_cast<double>(ns.count()) - ns.mean() * bytes.mean();
  const double most = std::min(ns.mean() / bytes.mean(), std::sqrt(ns.variance() / spread));
  return std::clamp(together / spread, 0.0, most);
}

}  // namespace

Profile profile_of_report(const Json& report, Profile profile) {
  if (!report.is_object() || !report.contains("ranks")) {
    throw Error(ErrorKind::usage, "this is no report of a run", "name what `penstock run --json` printed");
  }
  int64_t images = 0, sent_bytes = 0, received_bytes = 0;
  double receiver_busy_s = 0, ns_bytes = 0;
  for (const Json& rank : report["ranks"]) {
    add(profile.sample_ns, rank, "sample_ns");
    add(profile.sample_bytes, rank, "sample_bytes");
    ns_bytes += rank.value("sample_ns_bytes", 0.0);
    if (rank.value("role", "") == "loader") {
      images += rank.value("images", int64_t{0});
      sent_bytes += rank.value("sent_bytes", int64_t{0});
    }
    received_bytes += rank.value("received_bytes", int64_t{0});
    receiver_busy_s += rank.value("receiver_busy_s", 0.0);
    if (!rank.contains("splits")) continue;
    const auto split = rank["splits"].find(profile.split);
    if (split != rank["splits"].end()) add(profile.step_ns, *split, "step_ns");
  }
  if (images == 0 || profile.sample_ns.count() == 0) {
    throw Error(ErrorKind::usage, "the report tells of no sample that a loader made",
                "take one of a run that ended, of this version of penstock");
  }
  profile.payload_bytes = sent_bytes / images;
  profile.ns_per_byte = slope(profile, ns_bytes);
  profile.overhead.event_ns = kCoordinatorEvent;
  profile.overhead.loader_chunk_ns = kLoaderChunk;
  profile.overhead.hand_over_ns = kHandOver;
  if (received_bytes > 0)
    profile.overhead.receiver_ns_per_byte = receiver_busy_s * 1e9 / static_cast<double>(received_bytes);
  return profile;
}

std::string to_text(const Profile& profile) {
  Json json = {{"penstock_profile", kVersion}};
  texts(profile, [&](const char* key, const std::string& value) { json[key] = value; });
  numbers(profile, [&](const char* key, const auto& value) { json[key] = value; });
  histograms(profile, [&](const char* key, const Histogram& value) { json[key] = histogram_json(value); });
  if (!profile.pipeline.empty()) json["pipeline"] = profile.pipeline;
  json["hash"] = hash_of(json);
  return json_text(json, 1) + "\n";
}

Profile profile_from_text(const std::string& text, const std::string& name) {
  const Json json = parse_json_or_nothing(text);
  if (!json.is_object() || !json.contains("penstock_profile")) unreadable(name, "it is no profile");
  if (json["penstock_profile"] != kVersion) unreadable(name, "another version of penstock wrote it");
  Profile profile;
  texts(profile, [&](const char* key, std::string& value) {
    if (!json.contains(key) || !json[key].is_string()) unreadable(name, std::string(key) + " is missing");
    value = json[key].get<std::string>();
    if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 32 || c == 127; })) {
      unreadable(name, std::string(key) + " has control characters");
    }
  });
  numbers(profile, [&](const char* key, auto& value) {
    const bool good = json.contains(key) && json[key].is_number() && json[key].get<double>() >= 0 &&
                      json[key].get<double>() < kLargestNumber;
    if (!good) unreadable(name, std::string(key) + " is missing, negative or too large");
    value = json[key].get<std::remove_reference_t<decltype(value)>>();
  });
  histograms(profile, [&](const char* key, Histogram& value) {
    const auto read = json.contains(key) ? histogram_from(json[key]) : std::nullopt;
    if (!read) unreadable(name, std::string(key) + " is missing, or no histogram");
    value = *read;
  });
  const auto text_or_nothing = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
  };
  profile.pipeline = text_or_nothing("pipeline");
  profile.hash = text_or_nothing("hash");
  if (profile.hash != hash_of(json)) unreadable(name, "it was changed after it was measured: its hash is another one");
  return profile;
}

Profile read_profile(const std::string& path) {
  std::vector<std::byte> bytes;
  try {
    if (!posix_file_system().read_file(path, kMostBytes, bytes)) unreadable(path, "it is larger than any profile");
  } catch (const Error& error) {
    if (error.message().starts_with("cannot read the profile")) throw;
    unreadable(path, error.message());
  }
  return profile_from_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace penstock
