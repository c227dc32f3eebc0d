// SHA-256 (FIPS 180-4), for test data that gives only the hash of a long expected value.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace althing::tests {

class Sha256 {
 public:
  // 64 lower-case hexadecimal digits.
  static std::string hex(std::string_view bytes) {
    Sha256 hash;
    std::string padded(bytes.substr(bytes.size() / 64 * 64));
    padded.push_back('\x80');
    while (padded.size() % 64 != 56) padded.push_back('\0');
    for (int shift = 56; shift >= 0; shift -= 8) padded.push_back(static_cast<char>(std::uint64_t{bytes.size()} * 8 >> shift));
    for (std::size_t i = 0; i + 64 <= bytes.size(); i += 64) hash.add_block(bytes.substr(i, 64));
    for (std::size_t i = 0; i < padded.size(); i += 64) hash.add_block(std::string_view(padded).substr(i, 64));
    std::string digits;
    for (const std::uint32_t word : hash.state_)
      for (int shift = 28; shift >= 0; shift -= 4) digits.push_back("0123456789abcdef"[word >> shift & 15]);
    return digits;
  }

 private:
  // The first 32 bits of the fractional part of a root of the first primes: square roots for the state, cube roots for the rounds. Computed, so
  // that no table can have a typing error; long double has bits to spare.
  template <std::size_t Count>
  static std::array<std::uint32_t, Count> root_fractions(long double (*root)(long double)) {
    std::array<std::uint32_t, Count> fractions{};
    std::size_t found = 0;
    for (unsigned candidate = 2; found < Count; ++candidate) {
      bool prime = true;
      for (unsigned d = 2; d * d <= candidate; ++d) prime = prime && candidate % d != 0;
      if (!prime) continue;
      const long double value = root(static_cast<long double>(candidate));
      fractions[found++] = static_cast<std::uint32_t>((value - std::floor(value)) * 4294967296.0L);
    }
    return fractions;
  }

  void add_block(std::string_view block) {
    static const auto rounds = root_fractions<64>(std::cbrt);
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(block[i]);
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::array<std::uint32_t, 8> s = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t e = s[4], a = s[0];
      const std::uint32_t t1 = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + rounds[i] + w[i];
      const std::uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
  }

  std::array<std::uint32_t, 8> state_ = root_fractions<8>(std::sqrt);
};

}  // namespace althing::tests
