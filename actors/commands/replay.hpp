// `althing replay`: a server's journal once more, through a core of this build, and where it does otherwise than it did then. For people who debug:
// no server, no model, nothing but the scheduler's decisions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace althing::actors {

struct ReplaySettings {
  std::vector<std::string> journals;  // the files of one journal, oldest first
  std::uint64_t until = 0;            // the last line that is replayed, of the last file; 0: all
  std::vector<std::uint64_t> show;    // lines whose effects are printed, of the last file
  bool check = false;                 // the core's invariants, after every event
};

// Exit codes: 0 when all that can be compared is the same; 1 when something differs, or an invariant breaks; else that of the error's class: a file
// that is not there, is no journal, is damaged, or was redacted.
int run_replay(const ReplaySettings& settings);

}  // namespace althing::actors
