// Lists of hosts, as mpirun takes them: "a:8,b:16" on the command line, "a slots=8" on the lines of a file.
//
//   parse_hosts({"a:8", "b"})            // {a, 8}, {b, 0}
//   parse_hostfile(text, "hosts.txt")    // the same of a file
//   hosts_text(hosts)                    // "a:8,b:16", for mpirun
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

std::vector<HostSlots> parse_hosts(const std::vector<std::string>& words);
std::vector<HostSlots> parse_hostfile(const std::string& text, const std::string& name);
std::vector<HostSlots> read_hostfile(const std::string& path);  // Error(usage) where it cannot be read
std::string hosts_text(const std::vector<HostSlots>& hosts);
int total_slots(const std::vector<HostSlots>& hosts);

}  // namespace penstock
