#include "runtime/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"

namespace penstock {
namespace {

using nlohmann::json;

std::string number(double value, int decimals = 0) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  std::string digits = text;
  const size_t point = std::min(digits.find('.'), digits.size());
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t at = point; at > first + 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}
std::string percent(double share) {
  return number(100 * share, share < 0.1 ? 1 : 0) + " %";
}

// "Read ahead: 5,120 reads by io_uring; 80 by threads (io_uring_setup: Operation not permitted)"; empty: nobody had to.
std::string read_ahead_line(const json& report) {
  std::map<std::string, int64_t> reads;
  for (const json& rank : report.value("ranks", json::array())) {
    const json ahead = rank.value("read_ahead", json::object());
    if (ahead.value("reads", int64_t{0}) == 0) continue;
    const std::string why = ahead.value("why_threads", "");
    reads[ahead.value("method", "") + (why.empty() ? "" : " (" + why + ")")] += ahead["reads"].get<int64_t>();
  }
  std::string line;
  for (const auto& [how, count] : reads) {
    line += (line.empty() ? "read ahead: " : "; ") + number(static_cast<double>(count)) +
            (line.empty() ? " reads by " : " by ") + how;
  }
  return line.empty() ? line : line + "\n";
}

// "copies 31 %, decoding 52 %, resizing 17 %" of what a GPU did.
std::string stages_of(const json& gpu) {
  const double copy = gpu.value("copy_s", 0.0), decode = gpu.value("decode_s", 0.0);
  const double augment = gpu.value("augment_s", 0.0), sum = copy + decode + augment;
  if (sum <= 0) return {};
  return "copies " + percent(copy / sum) + ", decoding " + percent(decode / sum) + ", resizing " +
         percent(augment / sum);
}

// GPUs, where loaders were to use them; or why there are none.
std::string gpus_lines(const json& report) {
  std::string text;
  for (const json& rank : report.value("ranks", json::array())) {
    const json gpus = rank.value("gpus", json::object());
    const std::string who = "GPUs of loader " + std::to_string(rank.value("rank", 0)) + ": ";
    if (const std::string none = gpus.value("none", ""); !none.empty()) text += who + "none, " + none + "\n";
    const double all = rank.value("images", 0.0);
    const auto share = [&](double images) {
      return number(images) + " of " + number(all) + " images (" + percent(all > 0 ? images / all : 0) + ")";
    };
    for (const json& gpu : gpus.value("list", json::array())) {
      text += who + gpu.value("name", "") + " made " + share(gpu.value("images", 0.0)) + ", " +
              number(gpu.value("images_per_s", 0.0)) + " images/s, " + percent(gpu.value("busy_fraction", 0.0)) +
              " busy";
      if (const std::string split = stages_of(gpu); !split.empty()) text += ": " + split;
      if (const std::string failed = gpu.value("failed", ""); !failed.empty()) text += "; it failed: " + failed;
      text += "\n";
    }
    if (!gpus.contains("cpu_images") || gpus.value("list", json::array()).empty()) continue;
    text += who + "the CPU made " + share(gpus.value("cpu_images", 0.0));
    if (gpus.contains("by_speed")) text += ", by learned speeds";
    if (const double entropy = gpus.value("entropy_s", 0.0); entropy > 0) {
      text += ", and prepared images for GPUs in " + number(entropy, 1) + " s of its threads";
    }
    text += "\n";
  }
  return text;
}

// "Learned: restart points of 1,281,167 photos in 1,390 MB; 5,124,668 pictures were decoded from them"; empty: none
// were.
std::string learned_line(const json& report) {
  double photos = 0;
  double bytes = 0;
  double used = 0;
  for (const json& rank : report.value("ranks", json::array())) {
    const json learned = rank.value("learned_index", json::object());
    photos += learned.value("photos", 0.0);
    bytes += learned.value("bytes", 0.0);
    used += learned.value("used", 0.0);
  }
  if (photos <= 0) return {};
  return "learned: restart points of " + number(photos) + " photos in " + number(bytes / 1e6, bytes < 1e7 ? 1 : 0) +
         " MB; " + number(used) + " pictures were decoded from them\n";
}

// ---- what the balancer has learned --------------------------------------------------------------------------------

const json& balance_of(const json& report) {
  static const json none = json::object();
  for (const json& rank : report.at("ranks")) {
    if (rank.contains("balance")) return rank.at("balance");
  }
  return none;
}

// The host of a node, by the first rank there that said it.
std::string host_of(const json& report, int64_t node) {
  const json nodes = balance_of(report).value("nodes", json::array());
  for (const json& rank : report.at("ranks")) {
    const auto number = rank.value("rank", size_t{0});
    if (number < nodes.size() && nodes[number] == node && rank.contains("host")) return rank.at("host");
  }
  return "node " + std::to_string(node);
}

std::string rank_name(const json& report, int64_t number) {
  for (const json& rank : report.at("ranks")) {
    if (rank.value("rank", int64_t{-1}) != number) continue;
    std::string name = "rank " + std::to_string(number) + " (";
    name += rank.value("role", "") == "trainer" ? "trainer " + std::to_string(rank.value("trainer", 0)) : "loader";
    return name + (rank.contains("host") ? ", host " + rank.at("host").get<std::string>() : "") + ")";
  }
  return "rank " + std::to_string(number);
}

std::string link_name(const json& report, const json& link) {
  return host_of(report, link.at("from")) + " to " + host_of(report, link.at("to"));
}

bool between_nodes(const json& link) {
  return link.at("from") != link.at("to");
}

double number_or_0(const json& of, const char* name) {
  const json value = of.value(name, json());
  return value.is_number() ? value.get<double>() : 0.0;
}

// "cost of a chunk on a thread: 8.31 ms on average, 0.12 ms + 3.00 ns a byte + 2.00 ns a pixel".
std::string cost_line(const json& cost) {
  const double fixed_us = cost.at("fixed_us");
  const double ns_per_byte = cost.at("ns_per_byte");
  const double ns_per_pixel = cost.at("ns_per_pixel");
  std::string text = "cost of a chunk on a ";
  text += cost.at("executors") == "gpu" ? "thread with GPUs: " : "thread: ";
  text += number(cost.at("mean_us").get<double>() / 1e3, 2) + " ms on average";
  // Chunks that are much alike do not say which part is whose.
  if (std::min({fixed_us, ns_per_byte, ns_per_pixel}) >= 0) {
    text += ", " + number(fixed_us / 1e3, 2) + " ms + " + number(ns_per_byte, 2) + " ns a byte + " +
            number(ns_per_pixel, 2) + " ns a pixel";
  }
  return text + "\n";
}

// "speeds of the loaders, beside their mean: 0.33 to 1.67".
std::string speed_lines(const json& report, const json& loaders) {
  std::string text;
  double sum = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (const json& loader : loaders) {
    const double speed = loader.at("speed");
    sum += speed;
    least = std::min(least, speed);
    most = std::max(most, speed);
  }
  if (loaders.size() < 2 || sum <= 0) return text;
  const double mean = sum / static_cast<double>(loaders.size());
  for (const json& loader : loaders) {
    if (!loader.at("slow")) continue;
    const double speed = loader.at("speed");
    text += rank_name(report, loader.at("rank")) + " is slow: " + number(speed / mean, 2) + " of the mean speed\n";
  }
  return text + "speeds of the loaders, beside their mean: " + number(least / mean, 2) + " to " +
         number(most / mean, 2) + "\n";
}

// "leases: 12,345 granted, 3 given to another loader, 1 of them for being late", costs, slow loaders, links.
std::string balance_lines(const json& report) {
  const json& balance = balance_of(report);
  if (balance.empty()) return {};
  std::string text;
  for (const json& rank : report.at("ranks")) {
    if (!rank.contains("leases")) continue;
    const json& leases = rank.at("leases");
    text += "leases: " + number(leases.at("granted").get<double>()) + " granted, " +
            number(leases.at("regranted").get<double>()) + " of them a second time, " +
            number(leases.at("hedged").get<double>()) + " because the first holder was late";
    const double span = rank.value("elapsed_s", 0.0);
    if (const double busy = rank.value("coordinating_s", 0.0); busy > 0 && span > 0) {
      text += "; granting them took " + rank_name(report, rank.value("rank", int64_t{0})) + " " + percent(busy / span) +
              " of its time";
    }
    text += "\n";
  }
  for (const json& cost : balance.at("costs")) text += cost_line(cost);
  text += speed_lines(report, balance.at("loaders"));
  for (const json& link : balance.at("links")) {
    if (!between_nodes(link)) continue;
    text += "link " + link_name(report, link) + ": " + number(link.at("chunks").get<double>()) + " chunks, " +
            number(link.at("bytes").get<double>() / 1e6) + " MB";
    if (const double peak = number_or_0(link, "peak_mb_per_s"); peak > 0) {
      text += ", " + number(peak, 1) + " MB/s at its best";
    }
    text += "\n";
  }
  return text;
}

// " Slow beside the others of their kind: rank 5 (loader, host b)."; empty: none is.
std::string slow_sentence(const json& report) {
  std::string names;
  for (const json& loader : balance_of(report).value("loaders", json::array())) {
    if (loader.at("slow")) names += (names.empty() ? "" : ", ") + rank_name(report, loader.at("rank"));
  }
  return names.empty() ? "" : " Slow beside the others of their kind: " + names + ".";
}

// What one loader's threads did.
struct Load {
  int64_t rank = 0;
  int64_t threads = 0;
  double lived_s = 0;
  double busy_s = 0;  // of each thread

  // While batches were asked for: it may have left before the end.
  double span_s(double asked_s) const { return std::min(lived_s, asked_s); }
  double share(double asked_s) const { return span_s(asked_s) > 0 ? std::min(1.0, busy_s / span_s(asked_s)) : 0; }
};

// Time in which batches were asked for, of one trainer: loaders start before that, and idle after it.
double asked_seconds(const json& report) {
  double elapsed = 0;
  int trainers = 0;
  for (const json& rank : report.at("ranks")) {
    if (rank.value("role", "") != "trainer") continue;
    ++trainers;
    const json parts = rank.value("splits", json::object());
    for (const auto& [name, split] : parts.items()) elapsed += split.value("elapsed_s", 0.0);
  }
  return elapsed / std::max(trainers, 1);
}

Load load_of(const json& loader) {
  const double lived = loader.value("elapsed_s", 0.0);
  return {loader.value("rank", int64_t{0}), loader.value("threads", int64_t{0}), lived,
          lived * loader.value("busy_fraction", 0.0)};
}

// "all 8 CPUs of host a"; empty where some node of loaders has CPUs that no rank needs, or nothing is known of them.
std::string taken_cpus(const json& report) {
  struct Node {
    int64_t cpus = 0;
    int64_t needed = 0;
  };
  std::map<std::string, Node> nodes;
  for (const json& rank : report.at("ranks")) {
    Node& node = nodes[rank.value("host", "")];
    node.cpus = std::max(node.cpus, rank.value("cpus", int64_t{0}));
    node.needed += rank.value("role", "") == "trainer" ? 1 : rank.value("threads", int64_t{0});
  }
  std::erase_if(nodes, [](const auto& one) { return one.second.cpus == 0; });  // of trainers alone
  int64_t cpus = 0;
  for (const auto& [host, node] : nodes) {
    if (node.needed < node.cpus) return {};
    cpus += node.cpus;
  }
  if (nodes.empty()) return {};
  return "all " + std::to_string(cpus) + " CPUs of " +
         (nodes.size() == 1 ? "host " + nodes.begin()->first : std::to_string(nodes.size()) + " nodes");
}

// The link that came nearest to what it carries at its best; nothing where none came near. Ranks that share cores
// deliver in bursts: then the mean is far below the best. A link whose loaders are busy nearly all the time carries
// evenly what they make, and is not to blame.
std::optional<std::string> full_link(const json& report, const std::vector<Load>& loads, double elapsed_s) {
  // Measured: a full link has 0.57 and more, also where two share a cable; a free one 0.5 at most, unless the loaders'
  // threads are busy.
  constexpr double kFull = 0.55;
  constexpr double kBusy = 0.7;
  const json nodes = balance_of(report).value("nodes", json::array());
  const auto is_busy = [&](const json& node) {
    return std::any_of(loads.begin(), loads.end(), [&](const Load& load) {
      const auto number = static_cast<size_t>(load.rank);
      return number < nodes.size() && nodes[number] == node && load.share(elapsed_s) > kBusy;
    });
  };
  std::optional<std::string> fullest;
  double most = kFull;
  for (const json& link : balance_of(report).value("links", json::array())) {
    const double peak = number_or_0(link, "peak_mb_per_s");
    if (!between_nodes(link) || peak <= 0 || elapsed_s <= 0) continue;
    const double mean = link.at("bytes").get<double>() / 1e6 / elapsed_s;
    if (mean / peak <= most || is_busy(link.at("from"))) continue;
    most = mean / peak;
    fullest = "the link from " + link_name(report, link) + " carried " + number(mean, 1) + " MB/s on average, " +
              number(peak, 1) + " at its best";
  }
  return fullest;
}

}  // namespace

json merge_reports(const std::vector<std::string>& rank_reports) {
  json report;
  report["splits"] = json::object();
  report["ranks"] = json::array();
  for (const std::string& text : rank_reports) {
    json rank = parse_json_or_nothing(text);
    if (rank.is_discarded() || !rank.is_object()) throw Error(ErrorKind::runtime, "a rank's report cannot be read");
    // Several trainers with the same data (roles.ranks_per_replica) are one in the sums.
    const bool counted = rank.value("counted", true);
    json parts = counted ? rank.value("splits", json::object()) : json::object();
    for (auto& [name, part] : parts.items()) {
      json& split = report["splits"][name];
      const std::string arithmetic = part.value("arithmetic", std::string(name_of(Arithmetic::exact)));
      if (split.is_null()) {
        split = {{"order_hash", Sum128{}.hex()},
                 {"pixel_hash", Sum128{}.hex()},
                 {"images", 0},
                 {"batches", 0},
                 {"padding", 0},
                 {"images_per_s", 0.0},
                 {"wait_s", 0.0},
                 {"elapsed_s", 0.0},
                 {"bad_samples", json::array()},
                 {"bad_sample_count", 0},
                 {"arithmetic", arithmetic},
                 {"mode", part.value("mode", "train")}};
      }
      if (arithmetic != name_of(Arithmetic::exact)) split["arithmetic"] = arithmetic;
      for (const char* hash : {"order_hash", "pixel_hash"}) {
        Sum128 sum = Sum128::from_hex(split[hash].get<std::string>());
        sum += Sum128::from_hex(part[hash].get<std::string>());
        split[hash] = sum.hex();
      }
      split["images"] = split["images"].get<int64_t>() + part["images"].get<int64_t>();
      split["batches"] = split["batches"].get<int64_t>() + part["batches"].get<int64_t>();
      split["padding"] = split["padding"].get<int64_t>() + part.value("padding", int64_t{0});
      const double elapsed = part["elapsed_s"];
      split["wait_s"] = split["wait_s"].get<double>() + part["wait_s"].get<double>();
      split["elapsed_s"] = split["elapsed_s"].get<double>() + elapsed;
      if (elapsed > 0)
        split["images_per_s"] = split["images_per_s"].get<double>() + part["images"].get<double>() / elapsed;
      for (const json& bad : part["bad_samples"]) split["bad_samples"].push_back(bad);
      split["bad_sample_count"] = split["bad_sample_count"].get<int64_t>() + part.value("bad_sample_count", int64_t{0});
    }
    report["ranks"].push_back(std::move(rank));
  }
  for (auto& [name, split] : report["splits"].items()) {
    const double elapsed = split["elapsed_s"];
    split["wait_fraction"] = elapsed > 0 ? split["wait_s"].get<double>() / elapsed : 0.0;
    auto& bad = split["bad_samples"];
    std::sort(bad.begin(), bad.end(), [](const json& a, const json& b) {
      return std::pair(a["epoch"].get<int64_t>(), a["position"].get<int64_t>()) <
             std::pair(b["epoch"].get<int64_t>(), b["position"].get<int64_t>());
    });
    if (bad.size() > kMostBadSamples) bad.erase(bad.begin() + kMostBadSamples, bad.end());
    split.erase("wait_s");
    split.erase("elapsed_s");
  }
  report["bottleneck"] = bottleneck_sentence(report);
  return report;
}

std::string bottleneck_sentence(const json& report) {
  double wait = 0;
  double elapsed = 0;
  double receiver_busy = 0;
  double receiver_elapsed = 0;
  double read = 0;
  double python = 0;  // of it
  double decode = 0;
  double augment = 0;
  int64_t threads = 0;
  std::vector<Load> loads;
  // The trainer that waited most, and the receiver that was busy most, by share of their own time.
  std::pair<double, int64_t> longest_wait;
  std::pair<double, int64_t> busiest;
  for (const json& rank : report.value("ranks", json::array())) {
    if (rank.value("role", "") == "trainer") {
      double active = 0;
      const json parts = rank.value("splits", json::object());
      double its_wait = 0;
      for (const auto& [name, split] : parts.items()) {
        its_wait += split.value("wait_s", 0.0);
        active += split.value("elapsed_s", 0.0);
      }
      const auto number = rank.value("rank", int64_t{0});
      if (active > 0) longest_wait = std::max(longest_wait, {its_wait / active, number});
      if (active > 0) busiest = std::max(busiest, {rank.value("receiver_busy_s", 0.0) / active, number});
      wait += its_wait;
      elapsed += active;
      receiver_busy += rank.value("receiver_busy_s", 0.0);
      receiver_elapsed += active;
    } else {
      loads.push_back(load_of(rank));
      threads += loads.back().threads;
      read += rank.value("read_s", 0.0);
      python += rank.value("python_s", 0.0);
      decode += rank.value("decode_s", 0.0);
      augment += rank.value("augment_s", 0.0);
    }
  }
  if (elapsed <= 0) return "No batch was delivered.";
  const double waiting = wait / elapsed;
  const double asked_s = asked_seconds(report);
  double busy = 0;
  double span = 0;
  std::pair<double, int64_t> most_loaded;  // of the loaders' threads
  for (const Load& load : loads) {
    busy += load.busy_s * static_cast<double>(load.threads);
    span += load.span_s(asked_s) * static_cast<double>(load.threads);
    most_loaded = std::max(most_loaded, {load.share(asked_s), load.rank});
  }
  const double loaded = span > 0 ? std::min(1.0, busy / span) : 0;
  if (loads.empty()) {  // of one trainer alone, in the middle of a job
    return waiting < 0.05
               ? "The training program sets the pace: it waited for data " + percent(waiting) + " of the time."
               : "Loading holds the training program up: it waited for data " + percent(waiting) +
                     " of the time; the job's report, at its end, says which stage.";
  }
  std::string waited = "the programs waited for data " + percent(waiting) + " of the time";
  if (longest_wait.first > 2 * waiting && longest_wait.first > waiting + 0.1) {
    waited += " (that of " + rank_name(report, longest_wait.second) + " " + percent(longest_wait.first) + ")";
  }
  waited += ", the loaders' threads were " + percent(loaded) + " busy";
  if (most_loaded.first > 0.7 && loaded <= 0.7) {
    waited += " (those of " + rank_name(report, most_loaded.second) + " " + percent(most_loaded.first) + ")";
  }
  if (waiting < 0.05) {
    std::string text = "The training programs set the pace: " + waited + ".";
    const auto enough = static_cast<int64_t>(std::ceil(std::max(1.0, loaded * static_cast<double>(threads) / 0.8)));
    if (enough < threads) {
      text += " About " + std::to_string(enough) + " loader threads would do (now " + std::to_string(threads) + ").";
    } else {
      text += " Nothing to change.";
    }
    return text;
  }
  if (const auto full = full_link(report, loads, asked_s)) {
    return "The network held the job up: " + waited + "; " + *full +
           ". Loaders on the trainers' own nodes need no network; smaller images need less of it.";
  }
  // One loader whose threads are always busy is enough: others may be behind a slow link, or have none of the samples.
  if (most_loaded.first > 0.7) {
    const double work = std::max(1e-9, read + decode + augment);
    // What is needed is what the programs could take: their own time alone is elapsed - wait.
    const double factor = elapsed / std::max(elapsed - wait, 0.05 * elapsed);
    const auto wanted = static_cast<int64_t>(std::ceil(static_cast<double>(threads) * factor));
    const char* what = "Decoding";
    double share = decode / work;
    // Programs that do nothing but take batches can never be kept busy: a number would be nonsense.
    const std::string taken = taken_cpus(report);
    std::string change =
        !taken.empty() ? taken +
                             " have work already, so more threads there would not help: start loaders on "
                             "further nodes, or make samples cheaper (`penstock index`, smaller pictures)"
        : factor < 10 ? "raise loader.threads or start more loaders: about " + std::to_string(wanted) +
                            " loader threads would keep up (now " + std::to_string(threads) + ")"
                      : "raise loader.threads or start more loaders, as many as there are cores; programs "
                        "that do so little with a batch will always wait";
    if (read > decode && read > augment && python > read / 2) {
      what = "The data set in Python";
      share = read / work;
      // An index and smaller pictures help those whose samples loaders read.
      change = "make its __getitem__ faster, or " +
               (taken.empty() ? change
                              : "start loaders on further nodes (" + taken +
                                    " have work already, so more threads there would not help)");
    } else if (read > decode && read > augment) {
      what = "Reading files";
      share = read / work;
      change = "use faster storage or more loaders; threads wait for the disk, so more threads than cores help too";
    } else if (augment > decode) {
      what = "Resizing and augmenting";
      share = augment / work;
    }
    return std::string(what) + " held the job up: " + waited + ", " + percent(share) + " of it in this stage; " +
           change + "." + slow_sentence(report);
  }
  // A receiver is busy before the first batch is asked for, too: in a tiny job longer than between asking and the end.
  const double receivers = receiver_elapsed > 0 ? std::min(1.0, receiver_busy / receiver_elapsed) : 0;
  if (receivers > 0.7) {
    return "The receivers held the job up: " + waited + ", and finishing and copying batches took " +
           percent(receivers) + " of the trainers' time (" + rank_name(report, busiest.second) + " most, " +
           percent(std::min(1.0, busiest.first)) + "); deliver uint8 and normalise on the GPU.";
  }
  if (most_loaded.first > 0.4 && waiting < 0.25) {
    return "Batches were late now and then: " + waited +
           "; that is enough on the whole, and not at every moment (the first batches, large pictures, busy cores): "
           "raise loader.prefetch to even it out, or loader.threads." +
           slow_sentence(report);
  }
  return "Nobody was busy, yet " + waited +
         ": batches were not asked for early enough; raise loader.prefetch, or give the ranks more cores." +
         slow_sentence(report);
}

std::string report_text(const json& report) {
  std::string text;
  for (const auto& [name, split] : report["splits"].items()) {
    const double padding = split["padding"];
    text += "split " + name + ": " + number(split["images"].get<double>() - padding) + " images " +
            (padding == 0 ? "" : "and " + number(padding) + " of padding ") + "in " +
            number(split["batches"].get<double>()) + " batches, " + number(split["images_per_s"].get<double>()) +
            " images/s, waiting " + percent(split["wait_fraction"].get<double>()) + "\n";
    text += "  order_hash " + split["order_hash"].get<std::string>() + "\n";
    text += "  pixel_hash " + split["pixel_hash"].get<std::string>() + "\n";
    if (split["arithmetic"] == name_of(Arithmetic::fast)) text += std::string("  ") + kFastPromise + "\n";
    if (split["arithmetic"] == name_of(Arithmetic::opencv)) text += "  arithmetic opencv\n";
    const auto& bad = split["bad_samples"];
    if (!bad.empty()) {
      const int64_t count = split["bad_sample_count"];
      text += "  unusable samples: " + std::to_string(count) + "\n";
      size_t shown = 0;
      for (const json& item : bad) {
        if (++shown > 20) {
          text += "    ... and " + std::to_string(count - 20) + " more (--json lists " +
                  (count > std::ssize(bad) ? "the first " + std::to_string(bad.size()) : "all") + ")\n";
          break;
        }
        text += "    epoch " + std::to_string(item["epoch"].get<int64_t>()) + " '" + item["path"].get<std::string>() +
                "': " + item["reason"].get<std::string>() +
                (item["substitute"].is_null()
                     ? ""
                     : "; replaced by index " + std::to_string(item["substitute"].get<int64_t>())) +
                "\n";
      }
    }
  }
  char line[256];
  std::snprintf(line, sizeof line, "%5s  %-10s %10s %12s %9s %9s %10s %9s\n", "rank", "role", "images", "images/s",
                "MB", "busy", "waiting", "RSS MB");
  text += line;
  const double asked_s = asked_seconds(report);
  double delivered = 0;
  double made = 0;  // by the loaders that are in the table
  for (const json& rank : report["ranks"]) {
    const bool trainer = rank.value("role", "") == "trainer";
    double images = 0;
    double rate = 0;
    double waiting = 0;
    double busy = 0;
    double megabytes = 0;
    if (trainer) {
      double wait = 0;
      double active = 0;
      for (const auto& [name, split] : rank["splits"].items()) {
        images += split["images"].get<double>();
        wait += split["wait_s"].get<double>();
        active += split["elapsed_s"].get<double>();
      }
      rate = active > 0 ? images / active : 0;
      waiting = active > 0 ? wait / active : 0;
      if (rank.value("counted", true)) delivered += images;
      busy = active > 0 ? std::min(1.0, rank.value("receiver_busy_s", 0.0) / active) : 0;
      megabytes = rank.value("received_bytes", 0.0) / 1e6;
    } else {
      images = rank.value("images", 0.0);
      made += images;
      const Load load = load_of(rank);
      rate = load.span_s(asked_s) > 0 ? images / load.span_s(asked_s) : 0;
      busy = load.share(asked_s);
      waiting = 1 - busy;
      megabytes = rank.value("sent_bytes", 0.0) / 1e6;
    }
    std::snprintf(line, sizeof line, "%5d  %-10s %10s %12s %9s %9s %10s %9s\n", rank.value("rank", 0),
                  trainer ? ("trainer " + std::to_string(rank.value("trainer", 0))).c_str() : "loader",
                  number(images).c_str(), number(rate).c_str(), number(megabytes).c_str(), percent(busy).c_str(),
                  percent(waiting).c_str(), number(rank.value("max_rss_mb", 0.0)).c_str());
    text += line;
  }
  int64_t losses = 0;
  int64_t leaves = 0;
  for (const json& rank : report["ranks"]) {
    losses += rank.value("losses", std::ssize(rank.value("lost_loaders", json::array())));
    leaves += rank.value("leaves", int64_t{0});
  }
  // Those that are lost send no report. The others may have made samples that nobody took, so there may be more.
  if (losses > 0 && delivered > made) {
    text += "at least " + number(delivered - made) + " of the " + number(delivered) +
            " samples that were delivered came from loaders that were lost" + (leaves > 0 ? " or left" : "") +
            " and are not in the table\n";
  }
  for (const json& rank : report["ranks"]) {
    for (const json& lost : rank.value("lost_loaders", json::array())) {
      text += "lost on the way: " + lost.get<std::string>() + "; its leases were made by others\n";
    }
    const int64_t before = rank.value("losses", int64_t{0}) - std::ssize(rank.value("lost_loaders", json::array()));
    if (before > 0) text += "and " + std::to_string(before) + " times before\n";
  }
  text += balance_lines(report);
  text += read_ahead_line(report) + learned_line(report) + gpus_lines(report);
  text += report.value("bottleneck", "") + "\n";
  return text;
}

}  // namespace penstock
