// See the header. Nothing here prints a secret: of a secret key file it shows the public half.
#include "actors/commands/keys.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "actors/complain.hpp"
#include "protocol/curve/key_file.hpp"

namespace althing::actors {
namespace curve = protocol::curve;
namespace {

Error invalid(const std::string& why, const char* field) { return {ErrorCode::invalid_argument, why, field}; }

Result<curve::Role> role_from(const std::string& text, curve::Role otherwise) {
  if (text.empty()) return otherwise;
  const auto role = curve::role_of(text);
  if (!role) return invalid("--role is '" + text + "'; use client, gateway, admin or server", "role");
  return *role;
}

// The public half of whatever kind of key file this is.
Result<curve::KeyEntry> key_in(const std::string& path) {
  if (!path.ends_with(".key")) return curve::read_public_key(path);
  auto secret = curve::read_secret_key(path);
  if (!secret) return secret.error();
  return curve::KeyEntry{curve::Role::client, std::filesystem::path(path).stem(), secret->public_key(), ""};
}

Result<curve::AllowList> list_in(const std::string& path) {
  auto text = curve::read_allow_list(path);
  if (!text) return text.error();
  auto list = curve::allow_list_of(*text);
  if (!list) return Error{list.error().code, path + ": " + list.error().message, "list"};
  return list;
}

void print(const curve::KeyEntry& entry) {
  std::printf("%-8s %-20s %s %s\n", std::string(curve::name_of(entry.role)).c_str(), entry.name.c_str(), entry.key.text.c_str(),
              entry.tenant.c_str());
}

// All key files of a folder, each with its key or with what is wrong with it.
int list_folder(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".key" || entry.path().extension() == ".pub") paths.push_back(entry.path());
  if (error) return complain(Error{ErrorCode::io, "cannot read the folder " + folder + ": " + error.message(), "file"});
  std::sort(paths.begin(), paths.end());
  bool wrong = false;
  for (const std::string& path : paths) {
    auto entry = key_in(path);
    wrong = wrong || !entry;
    const std::string name = std::filesystem::path(path).filename();
    std::printf("%-24s %s\n", name.c_str(), entry ? entry->key.text.c_str() : ("WRONG: " + entry.error().message).c_str());
  }
  return wrong ? exit_failed : exit_ok;
}

// What `allow` puts into the list: the file's line, or the key, with what the flags say otherwise.
Result<curve::KeyEntry> wanted_entry(const KeysSettings& settings) {
  curve::KeyEntry entry;
  if (curve::looks_like_key(settings.key)) {
    auto key = curve::public_key_of(settings.key);
    if (!key) return key.error();
    if (settings.name.empty()) return invalid("a key alone has no name; add --name", "name");
    entry.key = std::move(*key);
  } else {
    auto read = curve::read_public_key(settings.key);
    if (!read) return read.error();
    entry = std::move(*read);
  }
  auto role = role_from(settings.role, entry.role);
  if (!role) return role.error();
  entry.role = *role;
  if (entry.role == curve::Role::server)
    return invalid("this is a server's key; clients have keys of their own, or give another --role if it is one", "role");
  if (!settings.name.empty()) entry.name = settings.name;
  if (!settings.tenant.empty()) entry.tenant = settings.tenant;
  if (!curve::is_name(entry.name)) return invalid("--name has other characters than A-Z a-z 0-9 . _ -, or more than 64", "name");
  if (!entry.tenant.empty() && !curve::is_name(entry.tenant))
    return invalid("--tenant has other characters than A-Z a-z 0-9 . _ -, or more than 64", "tenant");
  return entry;
}

}  // namespace

int run_keys_new(const KeysSettings& settings) {
  auto role = role_from(settings.role, curve::Role::client);
  if (!role) return complain(role.error());
  auto pair = curve::KeyPair::make();
  if (!pair) return complain(pair.error());
  const std::string name = std::filesystem::path(settings.file).filename();
  if (auto status = curve::write_key_pair(settings.file, *pair, *role, name); !status) return complain(status.error());
  std::printf("%s.key  secret, mode 0600: stays with whoever uses it\n%s.pub  public: %s\n", settings.file.c_str(), settings.file.c_str(),
              pair->public_key.text.c_str());
  return exit_ok;
}

int run_keys_show(const KeysSettings& settings) {
  auto entry = key_in(settings.file);
  if (!entry) return complain(entry.error());
  std::printf("%s\n", entry->key.text.c_str());
  return exit_ok;
}

int run_keys_list(const KeysSettings& settings) {
  std::error_code error;
  if (std::filesystem::is_directory(settings.file, error)) return list_folder(settings.file);
  if (settings.file.ends_with(".key") || settings.file.ends_with(".pub")) {
    auto entry = key_in(settings.file);
    if (!entry) return complain(entry.error());
    print(*entry);
    return exit_ok;
  }
  auto list = list_in(settings.file);
  if (!list) return complain(list.error());
  for (const curve::KeyEntry& entry : *list) print(entry);
  return exit_ok;
}

int run_keys_allow(const KeysSettings& settings) {
  auto entry = wanted_entry(settings);
  if (!entry) return complain(entry.error());
  auto status = curve::edit_allow_list(settings.list, true, [&](std::string_view text) { return curve::with_key(text, *entry); });
  if (!status) return complain(status.error());
  std::printf("allowed ");
  print(*entry);
  return exit_ok;
}

int run_keys_revoke(const KeysSettings& settings) {
  std::string what = settings.key;
  if (what.ends_with(".pub")) {
    auto entry = curve::read_public_key(what);
    if (!entry) return complain(entry.error());
    what = entry->key.text;
  }
  auto status = curve::edit_allow_list(settings.list, false, [&](std::string_view text) { return curve::without_key(text, what); });
  if (!status) return complain(status.error());
  std::printf("revoked %s\n", what.c_str());
  return exit_ok;
}

}  // namespace althing::actors
