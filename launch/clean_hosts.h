// What mpirun left on other hosts when a job ended before it ran: the session folder, and daemons that have not noticed.
//
//   clean_hosts({"node2", "node3"}, "/tmp/penstock-3f9a", {"ssh"}, 5.0);
//
// Purpose: as long as a rank runs on a host, it, or its helper, takes the folder along; where none came up, because the
//   program, its job or the disk is not what it should be there, nobody does. Called where no rank of the job ran.
// How: the agent that starts mpirun's daemons is given a script by its standard input, on some 64 hosts at a time: end
//   whatever has the folder's name, which is this job's alone, on its command line, and remove the folder.
// Thread-safety: any thread; it waits for its own children alone. Failure: none that is told. A host that does not answer
//   within the limit is left as it is. `agent` is not empty.
#pragma once

#include <string>
#include <vector>

namespace penstock {

void clean_hosts(const std::vector<std::string>& hosts, const std::string& folder,
                 const std::vector<std::string>& agent, double limit_s);

}  // namespace penstock
