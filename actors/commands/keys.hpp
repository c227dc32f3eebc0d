// `althing keys`: makes keys, shows them, and edits the list of those that a server lets in.
#pragma once

#include <string>

namespace althing::actors {

struct KeysSettings {
  std::string file;          // new: NAME of NAME.key and NAME.pub, with or without a folder; list, show: what to look at
  std::string role;          // new, allow; "": client, or what the .pub file says
  std::string key;           // allow, revoke: a .pub file, a public key; revoke: a name, too
  std::string list;          // allow, revoke: the allow-list
  std::string name, tenant;  // allow; "": what the .pub file says, and the server's default
};

int run_keys_new(const KeysSettings& settings);
int run_keys_show(const KeysSettings& settings);
int run_keys_list(const KeysSettings& settings);
int run_keys_allow(const KeysSettings& settings);
int run_keys_revoke(const KeysSettings& settings);

}  // namespace althing::actors
