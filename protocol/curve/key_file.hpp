// Keys on disk: NAME.key holds a secret and is its owner's alone (0600), NAME.pub holds the line of an allow-list. What is read is looked at first,
// on the descriptor that is then read: a regular file, of the right owner, that others cannot read or change. Nothing here follows a symbolic link.
#pragma once

#include <functional>
#include <string>

#include "protocol/curve/allow_list.hpp"
#include "protocol/curve/key.hpp"

namespace althing::protocol::curve {

// Errors: not_found, io, invalid_argument (a link, no regular file, another owner, open to others, no key in it: each says what to do). A path that
// is a key is not repeated.
Result<SecretKey> read_secret_key(const std::string& path);
// Of a .pub file, which others may read.
Result<KeyEntry> read_public_key(const std::string& path);
// A .pub file, or the key itself as text.
Result<PublicKey> public_key_from(const std::string& path_or_key);
// The list as text: a file that only its owner, who is this user or root, may write.
Result<std::string> read_allow_list(const std::string& path);

// Writes `path`.key and `path`.pub, neither of which may exist. Errors: io, invalid_argument.
Status write_key_pair(const std::string& path, const KeyPair& pair, Role role, const std::string& name);

// Replaces the list by what `edit` makes of its text, in one step, so that a reader finds the old or the new one; two that edit at a time take turns.
// A list that does not exist is made, 0600, if `make`. Errors: those of reading, of `edit`, and io.
Status edit_allow_list(const std::string& path, bool make, const std::function<Result<std::string>(std::string_view)>& edit);

}  // namespace althing::protocol::curve
