// A reader of Prometheus text format 0.0.4 for the tests: strict about all that the format fixes, so a page that parses here parses in Prometheus.
// Checked: HELP and TYPE before the samples of a family and once each, families not interleaved, legal names, quoted labels, finite numbers, no
// series twice, counters named _total and not negative, histogram buckets cumulative and closed by +Inf equal to _count.
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace althing::tests {

struct Page {
  std::map<std::string, double> samples;     // `name{label="value",…}` as printed → value
  std::map<std::string, std::string> types;  // family → counter, gauge, histogram
  std::map<std::string, std::set<std::string>> label_values;
  std::vector<std::string> problems;  // empty when the page is valid

  // The sample's value; NaN when the page has no such series.
  double at(const std::string& series) const {
    const auto found = samples.find(series);
    return found == samples.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
  }
};

class PageReader {
 public:
  static Page read(const std::string& text) {
    PageReader reader;
    if (text.empty() || text.back() != '\n') reader.problem("the page does not end with a line end");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line); ++reader.line_) reader.line(line);
    reader.close_family();
    return std::move(reader.page_);
  }

 private:
  struct Bucket {
    double bound, count;
  };
  struct Histogram {
    std::vector<Bucket> buckets;
    double count = -1;
  };

  void problem(const std::string& what) { page_.problems.push_back("line " + std::to_string(line_) + ": " + what); }

  static bool is_name(const std::string& name) {
    if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
    return name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == std::string::npos;
  }

  void line(const std::string& line) {
    if (line.rfind("# HELP ", 0) == 0) return open_family(line.substr(7));
    if (line.rfind("# TYPE ", 0) == 0) return type(line.substr(7));
    if (line.empty() || line[0] == '#') return problem("an unknown line: " + line);
    sample(line);
  }

  void open_family(const std::string& rest) {
    close_family();
    family_ = rest.substr(0, rest.find(' '));
    if (!is_name(family_) || family_.rfind("althing_", 0) != 0) problem("bad family name " + family_);
    if (rest.size() < family_.size() + 2) problem("no help text for " + family_);
    if (!helped_.insert(family_).second) problem("second HELP of " + family_);
  }

  void type(const std::string& rest) {
    const std::size_t space = rest.find(' ');
    const std::string name = rest.substr(0, space), kind = rest.substr(space + 1);
    if (name != family_) problem("TYPE of " + name + " in the family " + family_);
    if (kind != "counter" && kind != "gauge" && kind != "histogram") problem("unknown type " + kind);
    if (!page_.types.emplace(name, kind).second) problem("second TYPE of " + name);
    const bool total = name.size() > 6 && name.compare(name.size() - 6, 6, "_total") == 0;
    if ((kind == "counter") != total) problem(name + " is a " + kind);
  }

  void sample(const std::string& line) {
    std::map<std::string, std::string> labels;
    std::size_t at = line.find_first_of("{ ");
    if (at == std::string::npos) return problem("no value: " + line);
    const std::string name = line.substr(0, at);
    if (line[at] == '{' && !read_labels(line, at, labels)) return problem("bad labels: " + line);
    if (at >= line.size() || line[at] != ' ') return problem("no space before the value: " + line);
    char* end = nullptr;
    const double value = std::strtod(line.c_str() + at + 1, &end);
    // A gauge may be unknown or without a bound, spelt as Prometheus spells it.
    const std::string spelt = line.substr(at + 1);
    const bool open = page_.types.count(family_) && page_.types[family_] == "gauge" && (spelt == "NaN" || spelt == "+Inf");
    if (*end != '\0' || (!std::isfinite(value) && !open)) problem("bad value: " + line);
    if (!page_.samples.emplace(line.substr(0, at), value).second) problem("series twice: " + line);
    const std::string kind = page_.types.count(family_) ? page_.types[family_] : "";
    if (kind == "histogram") return histogram_sample(name, labels, value);
    if (name != family_) problem(name + " in the family " + family_);
    if (kind == "counter" && value < 0) problem("negative counter: " + line);
  }

  // Leaves `at` behind the closing brace.
  bool read_labels(const std::string& line, std::size_t& at, std::map<std::string, std::string>& labels) {
    for (++at; at < line.size() && line[at] != '}';) {
      const std::size_t equals = line.find("=\"", at);
      if (equals == std::string::npos) return false;
      const std::string label = line.substr(at, equals - at);
      std::string value;
      for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] == '\\' && ++at >= line.size()) return false;
        value += line[at];
      }
      if (at++ >= line.size() || !is_name(label) || !labels.emplace(label, value).second) return false;
      if (label != "le") page_.label_values[label].insert(value);
      if (at < line.size() && line[at] == ',') ++at;
    }
    return at++ < line.size();
  }

  void histogram_sample(const std::string& name, const std::map<std::string, std::string>& labels, double value) {
    // One histogram a set of labels.
    std::string key;
    for (const auto& [label, text] : labels)
      if (label != "le") key += label + "=" + text + ",";
    Histogram& histogram = histograms_[key];
    if (name == family_ + "_bucket") {
      const auto le = labels.find("le");
      if (le == labels.end()) return problem("a bucket without le");
      histogram.buckets.push_back({le->second == "+Inf" ? std::numeric_limits<double>::infinity() : std::strtod(le->second.c_str(), nullptr), value});
    } else if (name == family_ + "_count") {
      histogram.count = value;
    } else if (name != family_ + "_sum") {
      problem(name + " in the histogram " + family_);
    }
  }

  void close_family() {
    if (!family_.empty() && page_.types.count(family_) && page_.types[family_] == "histogram") {
      if (histograms_.empty()) problem(family_ + " has no histogram");
      for (const auto& [labels, histogram] : histograms_) close_histogram(histogram);
    }
    histograms_.clear();
  }

  void close_histogram(const Histogram& histogram) {
    const auto& buckets = histogram.buckets;
    if (buckets.empty() || !std::isinf(buckets.back().bound) || buckets.back().count != histogram.count)
      problem(family_ + " is not closed by +Inf = _count");
    if (buckets.size() > 14) problem(family_ + " has " + std::to_string(buckets.size()) + " buckets; 14 are allowed");
    for (std::size_t i = 1; i < buckets.size(); ++i)
      if (buckets[i].bound <= buckets[i - 1].bound || buckets[i].count < buckets[i - 1].count) problem(family_ + " is not cumulative");
  }

  Page page_;
  int line_ = 1;
  std::string family_;
  std::set<std::string> helped_;
  std::map<std::string, Histogram> histograms_;  // of the family at hand
};

}  // namespace althing::tests
