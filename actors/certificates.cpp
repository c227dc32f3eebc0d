// Certificates through libcrypto: an authority and one leaf. See the header for why.
#include "actors/certificates.hpp"

#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

namespace althing::actors {
namespace {

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using Bio = std::unique_ptr<BIO, FreeWith<BIO_free>>;

Error openssl_error(const std::string& what) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  return Error{ErrorCode::internal, "cannot make a certificate (" + what + "): " + text, ""};
}

// `issuer` null: self-signed authority.
Certificate make_certificate(EVP_PKEY* key, const char* name, X509* issuer, EVP_PKEY* issuer_key) {
  Certificate x(X509_new());
  std::uint64_t serial = 0;
  if (!x || RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) != 1) return nullptr;
  X509_set_version(x.get(), 2);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(x.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(x.get()), -300);
  X509_gmtime_adj(X509_getm_notAfter(x.get()), 365L * 24 * 3600);
  X509_set_pubkey(x.get(), key);
  X509_NAME* subject = X509_get_subject_name(x.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
  X509_set_issuer_name(x.get(), issuer == nullptr ? subject : X509_get_subject_name(issuer));
  X509_EXTENSION* constraint =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, issuer == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (constraint == nullptr) return nullptr;
  X509_add_ext(x.get(), constraint, -1);
  X509_EXTENSION_free(constraint);
  if (X509_sign(x.get(), issuer_key, EVP_sha256()) == 0) return nullptr;
  return x;
}

Result<Descriptor> sealed_memory(const char* name, BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  Descriptor file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::write(file.get(), bytes, static_cast<std::size_t>(size)) != size ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    return Error{ErrorCode::io, std::string("cannot keep a certificate in memory: ") + std::strerror(errno), ""};
  return file;
}

Result<Descriptor> pem_of(const char* name, X509* certificate) {
  Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_X509(bio.get(), certificate) != 1) return openssl_error("writing it");
  return sealed_memory(name, bio.get());
}

}  // namespace

Result<Certificates> make_certificates() {
  Key authority_key(EVP_EC_gen("P-256"));
  Key leaf_key(EVP_EC_gen("P-256"));
  if (!authority_key || !leaf_key) return openssl_error("making a key");
  Certificate authority = make_certificate(authority_key.get(), "althing run authority", nullptr, authority_key.get());
  if (!authority) return openssl_error("signing the authority");
  Certificate leaf = make_certificate(leaf_key.get(), "althing process", authority.get(), authority_key.get());
  if (!leaf) return openssl_error("signing the leaf");

  Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_PrivateKey(bio.get(), leaf_key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return openssl_error("writing the key");
  auto key = sealed_memory("althing-key", bio.get());
  if (!key) return key.error();
  auto authority_pem = pem_of("althing-authority", authority.get());
  if (!authority_pem) return authority_pem.error();
  auto leaf_pem = pem_of("althing-certificate", leaf.get());
  if (!leaf_pem) return leaf_pem.error();
  return Certificates{std::move(*authority_pem), std::move(*leaf_pem), std::move(*key)};
}

std::string path_of(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

}  // namespace althing::actors
