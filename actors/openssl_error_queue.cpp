// OpenSSL keeps errors in a queue of the thread, and SSL_get_error reports what lies there, whoever put it. CAF 0.17 serves all TLS connections from
// one thread and never clears the queue, so one rank's broken connection (a reset after kill -9) made the next healthy connection that was merely
// idle look broken too, and CAF closed it. These four stand in front of OpenSSL's functions for the whole program and clear the queue first, as
// OpenSSL's manual asks of every caller.
#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

namespace {

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int SSL_read(SSL* connection, void* buffer, int size) {
  static const auto real = next<int (*)(SSL*, void*, int)>("SSL_read");
  ERR_clear_error();
  return real(connection, buffer, size);
}

extern "C" int SSL_write(SSL* connection, const void* buffer, int size) {
  static const auto real = next<int (*)(SSL*, const void*, int)>("SSL_write");
  ERR_clear_error();
  return real(connection, buffer, size);
}

extern "C" int SSL_accept(SSL* connection) {
  static const auto real = next<int (*)(SSL*)>("SSL_accept");
  ERR_clear_error();
  return real(connection);
}

extern "C" int SSL_connect(SSL* connection) {
  static const auto real = next<int (*)(SSL*)>("SSL_connect");
  ERR_clear_error();
  return real(connection);
}
