// `althing top`: a running server's figures in the terminal, anew every second; or once; or as JSON lines.
#pragma once

#include <string>

namespace althing::actors {

struct TopSettings {
  std::string address = "127.0.0.1:9464";  // of the server's --metrics
  bool once = false;
  bool json = false;
  std::string colour = "auto";
};

// Exit codes: 0; 2 a wrong address; 3 nobody answers there; 4 what answers is no Althing server; 130 Ctrl-C.
int run_top(const TopSettings& settings);

}  // namespace althing::actors
