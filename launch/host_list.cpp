#include "launch/host_list.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/memory.h"

namespace penstock {
namespace {

// 0 where it is no number above 0.
int number_of(const std::string& text) {
  int number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  constexpr int kMost = 1'000'000;  // ranks of one host, or nodes: what is more is a mistake
  return failed == std::errc() && end == text.data() + text.size() && number > 0 && number <= kMost ? number : 0;
}

constexpr const char* kHostfileRemedy =
    "--hostfile and its like name a file as mpirun takes it: on each line a host, and after it slots=N where that is "
    "to "
    "be said";

int slots_of(const std::string& text, const std::string& where) {
  if (const int slots = number_of(text); slots > 0) return slots;
  throw Error(ErrorKind::usage, where + ": '" + text + "' is no number of ranks",
              "HOST:N on the command line, HOST slots=N in a file, NODES:RANKS for nodes that a cluster chooses");
}

// What else comes here by mistake: overrides ("seed=3"), paths, options.
void require_host_name(const std::string& host, const std::string& where) {
  const bool plain = !host.empty() && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  if (plain && std::isalnum(static_cast<unsigned char>(host[0])) != 0) return;
  throw Error(ErrorKind::usage, where + "'" + host + "' is no name of a host",
              "letters, digits, '.', '-' and '_': node1:8,node2:8; an override stands before --host and its like, or "
              "behind another option");
}

// HOST or HOST:N. `where`: the file and line; empty on the command line. Host lists have no way to write an IPv6 address.
HostSlots host_of(const std::string& word, const std::string& where) {
  const std::string before = where.empty() ? "" : where + ": ";
  if (std::count(word.begin(), word.end(), ':') > 1) {
    throw Error(ErrorKind::usage, before + "'" + word + "' has more than one colon",
                "HOST:N; a host that has an IPv6 address alone needs a name, in /etc/hosts or DNS");
  }
  const size_t colon = word.find(':');
  const std::string host = word.substr(0, colon);
  require_host_name(host, before);
  if (colon == std::string::npos) return {host, 0};
  return {host, slots_of(word.substr(colon + 1), where.empty() ? "host '" + host + "'" : where)};
}

void add(std::vector<HostSlots>& hosts, const std::string& host, int slots) {
  const auto known = std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& h) { return h.host == host; });
  if (known == hosts.end()) {
    hosts.push_back({host, slots});
  } else {
    known->slots += slots;
  }
}

}  // namespace

std::vector<HostSlots> parse_hosts(const std::vector<std::string>& words) {
  std::vector<HostSlots> hosts;
  for (const std::string& word : words) {
    if (word.empty() || word.rfind(':') == 0) {
      throw Error(ErrorKind::usage, "'" + word + "' names no host", "node1:8,node2:8");
    }
    const HostSlots given = host_of(word, "");
    add(hosts, given.host, given.slots);
  }
  return hosts;
}

NodeCount parse_nodes(const std::string& word) {
  std::vector<std::string> numbers;
  std::istringstream text(word + ":");
  for (std::string number; std::getline(text, number, ':');) numbers.push_back(number);
  NodeCount count{numbers.empty() ? 0 : number_of(numbers[0])};
  if (count.nodes == 0 || numbers.size() > 3) {
    throw Error(ErrorKind::usage, "'" + word + "' counts no nodes",
                "NODES:RANKS, as 2:8; or 2:8:4 with 4 loaders besides");
  }
  const std::string where = std::to_string(count.nodes) + " nodes";
  if (numbers.size() > 1) count.ranks = slots_of(numbers[1], where);
  if (numbers.size() > 2) count.loaders = slots_of(numbers[2], where);
  return count;
}

std::vector<HostSlots> parse_hostfile(const std::string& text, const std::string& name) {
  std::vector<HostSlots> hosts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::string where = name + ":" + std::to_string(number);
    std::istringstream words(std::regex_replace(line.substr(0, line.find('#')), std::regex("[ \t]*=[ \t]*"), "="));
    std::string first;
    if (!(words >> first)) continue;
    HostSlots given = host_of(first, where);
    for (std::string word; words >> word;) {
      if (word.starts_with("slots=")) {
        given.slots = slots_of(word.substr(6), where);
      } else if (!word.starts_with("max_slots=") && !word.starts_with("max-slots=")) {
        throw Error(ErrorKind::usage, where + ": '" + word + "' is not understood", kHostfileRemedy);
      }
    }
    add(hosts, given.host, given.slots);
  }
  if (hosts.empty()) {
    throw Error(ErrorKind::usage, "the host file '" + name + "' names no host", kHostfileRemedy);
  }
  return hosts;
}

std::vector<HostSlots> read_hostfile(const std::string& path) {
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored)) {
    throw Error(ErrorKind::usage, "the host file '" + path + "' is a folder", kHostfileRemedy);
  }
  std::ifstream file(path);
  if (!file) {
    throw Error(ErrorKind::usage, system_error_text("cannot read the host file '" + path + "'"), kHostfileRemedy);
  }
  std::stringstream text;
  text << file.rdbuf();
  return parse_hostfile(text.str(), path);
}

std::string hosts_text(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts) {
    text += (text.empty() ? "" : ",") + host.host + (host.slots > 0 ? ":" + std::to_string(host.slots) : "");
  }
  return text;
}

int total_slots(const std::vector<HostSlots>& hosts) {
  int total = 0;
  for (const HostSlots& host : hosts) total += host.slots;
  return total;
}

bool is_local(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1";
}

std::string own_name_among(const std::vector<std::string>& hosts) {
  const std::string own = host_name();
  const auto extends = [](const std::string& longer, const std::string& name) {
    return longer.starts_with(name + ".") && name.find('.') == std::string::npos;
  };
  std::set<std::string> alike;
  for (const std::string& host : hosts) {
    if (is_local(host) || host == own) return host;
    if (extends(host, own) || extends(own, host)) alike.insert(host);
  }
  return alike.size() == 1 ? *alike.begin() : "";
}

}  // namespace penstock
