// Lists of hosts, as mpirun takes them: "a:8,b:16" on the command line, "a slots=8" on the lines of a file.
//
//   parse_hosts({"a:8", "b"})            // {a, 8}, {b, 0}
//   parse_hostfile(text, "hosts.txt")    // the same of a file
//   hosts_text(hosts)                    // "a:8,b:16", for mpirun
//   parse_nodes("2:8")                   // 2 nodes with 8 ranks each, where hosts have no names yet
//   parse_nodes("2:8:4")                 // and 4 loaders beside them
//
// Pure, but for read_hostfile(). A host that stands twice is one with the sum of its slots. Of what mpirun knows in a
// file beside slots nothing is read.
// Failure: Error(usage) that quotes what cannot be read, or names no host.
#pragma once

#include <string>
#include <vector>

namespace penstock {

struct HostSlots {
  std::string host;
  int slots = 0;  // 0: not said
};

struct NodeCount {
  int nodes = 0;
  int ranks = 0;    // of each; 0: not said
  int loaders = 0;  // of each besides
};

std::vector<HostSlots> parse_hosts(const std::vector<std::string>& words);
NodeCount parse_nodes(const std::string& word);
std::vector<HostSlots> parse_hostfile(const std::string& text, const std::string& name);
std::vector<HostSlots> read_hostfile(const std::string& path);  // Error(usage) where it cannot be read
std::string hosts_text(const std::vector<HostSlots>& hosts);
int total_slots(const std::vector<HostSlots>& hosts);
bool is_local(const std::string& host);  // by its name alone: "localhost"
// The one of `hosts` that is this host; empty: none is, or it cannot be told. Names with and without a domain may be of one
// host, where they are of one only.
std::string own_name_among(const std::vector<std::string>& hosts);

}  // namespace penstock
