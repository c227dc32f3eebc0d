// See the header.
#include "monitoring/expert_pages.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <span>
#include <string_view>

#include "monitoring/expert_figures.hpp"

namespace althing::monitoring {
namespace {

constexpr std::array<std::uint32_t, 3> top_counts = {1, 4, 8};

void append_number(std::string& text, std::uint64_t number) {
  std::array<char, 24> digits;
  text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
}

void append_number(std::string& text, double number) {
  std::array<char, 40> digits;
  if (std::isnan(number)) {
    text += "NaN";
  } else if (std::isinf(number)) {
    text += number < 0 ? "-Inf" : "+Inf";
  } else {
    text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
  }
}

// Nine digits behind the point: more than the unit of 2^-32 has.
void append_number(std::string& text, const FixedSum& sum) {
  append_number(text, sum.whole);
  const std::uint64_t nano = sum.fraction * 1'000'000'000u >> 32;
  std::string digits;
  append_number(digits, nano);
  text.append(".").append(9 - digits.size(), '0').append(digits);
}

struct Label {
  std::string_view name;
  std::uint32_t value;
};

class PageText {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    page_.families.emplace_back(name, page_.text.size());
    page_.text.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
  }
  template <class Number>
  void sample(std::initializer_list<Label> labels, const Number& number) {
    page_.text += name_;
    char before = '{';
    for (const Label& label : labels) {
      page_.text.append(1, before).append(label.name).append("=\"");
      append_number(page_.text, std::uint64_t{label.value});
      page_.text += '"';
      before = ',';
    }
    if (before == ',') page_.text += '}';
    page_.text += ' ';
    append_number(page_.text, number);
    page_.text += '\n';
    ++page_.series;
  }
  void sample_of_all_layers(std::uint32_t rank, std::uint64_t number) {
    page_.text.append(name_).append("{layer=\"all\",rank=\"");
    append_number(page_.text, std::uint64_t{rank});
    page_.text += "\"} ";
    append_number(page_.text, number);
    page_.text += '\n';
    ++page_.series;
  }
  void comment(std::string_view text) { page_.text.append("# ").append(text).append("\n"); }
  void reserve(std::size_t bytes) { page_.text.reserve(bytes); }
  ExpertPage take() { return std::move(page_); }

 private:
  std::string_view name_;
  ExpertPage page_;
};

std::span<const std::uint64_t> layer_of(const std::vector<std::uint64_t>& cells, std::size_t layer, std::size_t width) {
  return {cells.data() + layer * width, width};
}

// One number a layer: a gauge, or a counter where the name ends as one.
template <class NumberOf>
void by_layer(PageText& page, std::uint32_t layers, std::string_view name, std::string_view help, NumberOf number_of) {
  page.family(name, name.ends_with("_total") ? "counter" : "gauge", help);
  for (std::uint32_t layer = 0; layer < layers; ++layer) page.sample({{"layer", layer}}, number_of(layer));
}

// Families in the order of their names, here and below.
void add_experts(PageText& page, const ExpertView& view, const std::vector<LoadFigures>& loads) {
  const std::uint32_t layers = view.grid.layers;
  by_layer(page, layers, "althing_expert_active", "Experts that a step met, mean over the window's steps.",
           [&](std::uint32_t l) { return view.active[l]; });
  by_layer(page, layers, "althing_expert_dropped_total", "Choices of an expert that nobody computed, because it was full (--capacity-policy).",
           [&](std::uint32_t l) { return view.diverted[l].dropped; });
  by_layer(page, layers, "althing_expert_hot", "Experts with more than twice the mean in the recent window; 0 until the window is whole.",
           [&](std::uint32_t l) { return std::uint64_t{view.whole_window ? loads[l].hot : 0}; });
  by_layer(page, layers, "althing_expert_idle", "Experts without a token in the recent window; 0 until the window is whole.",
           [&](std::uint32_t l) { return std::uint64_t{view.whole_window ? loads[l].idle : 0}; });
  by_layer(page, layers, "althing_expert_imbalance_ratio", "Largest over mean tokens per expert in the recent window; 0 before any token.",
           [&](std::uint32_t l) { return loads[l].imbalance; });
  by_layer(page, layers, "althing_expert_load_cv", "Standard deviation over mean of tokens per expert in the recent window.",
           [&](std::uint32_t l) { return loads[l].cv; });
  by_layer(page, layers, "althing_expert_omitted_total", "Choices of an expert that a token did without (--dynamic-k).",
           [&](std::uint32_t l) { return view.diverted[l].omitted; });
  double rows = 0, taken = 0;
  for (const LoadFigures& load : loads) rows += static_cast<double>(load.largest) * view.grid.experts, taken += load.mean * view.grid.experts;
  page.family("althing_expert_padding_ratio", "gauge",
              "Rows that would be wasted if every expert's were padded to the hottest of its layer; window.");
  page.sample({}, rows > 0 ? 1 - taken / rows : 0.0);
  page.family("althing_expert_replicas", "gauge", "Experts that a rank holds in each layer, copies included; the same in all layers.");
  for (std::uint32_t rank = 0; rank < view.grid.ranks; ++rank) page.sample_of_all_layers(rank, view.slots_held[rank]);
  by_layer(page, layers, "althing_expert_rerouted_total", "Choices of a full expert that the next-best one with room computed (--capacity-policy).",
           [&](std::uint32_t l) { return view.diverted[l].rerouted; });
  by_layer(page, layers, "althing_expert_saturation_minutes",
           "Until the hottest expert takes --expert-capacity-factor times the mean, if it goes on rising; +Inf when it does not rise.",
           [&](std::uint32_t l) { return view.saturation_minutes[l]; });
  by_layer(page, layers, "althing_expert_to_replica_total", "Choices of an expert that another copy with room computed (--capacity-policy).",
           [&](std::uint32_t l) { return view.diverted[l].to_replica; });
  page.family("althing_expert_top_share_ratio", "gauge", "Part of the window's tokens that the k hottest experts took.");
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    for (const std::uint32_t k : top_counts) page.sample({{"layer", layer}, {"k", k}}, top_share(layer_of(view.window, layer, view.grid.experts), k));
  page.family("althing_expert_weight_bytes_total", "counter",
              "Bytes of experts' weights that steps read: copies of experts that they met, times the size of one. Computed, not measured.");
  page.sample({}, view.expert_bytes);
}

void add_ranks(PageText& page, const ExpertView& view) {
  const std::uint32_t layers = view.grid.layers, ranks = view.grid.ranks;
  page.family("althing_layer_rank_tokens_total", "counter", "Tokens taken by the experts of a layer on a rank.");
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      page.sample({{"layer", layer}, {"rank", rank}}, view.rank_tokens[std::size_t{layer} * ranks + rank]);
  by_layer(page, layers, "althing_rank_imbalance_ratio", "Largest over mean tokens per rank in the recent window.", [&](std::uint32_t l) {
    std::vector<std::uint64_t> serving;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      if (view.slots_held[rank] > 0) serving.push_back(view.rank_window[std::size_t{l} * ranks + rank]);
    return load_figures(serving).imbalance;
  });
}

void add_router(PageText& page, const ExpertView& view) {
  const std::uint32_t layers = view.grid.layers;
  by_layer(page, layers, "althing_router_entropy_nats", "Entropy of the router's softmax over all experts, mean over the window's tokens.",
           [&](std::uint32_t l) { return view.router[l].entropy_nats; });
  page.family("althing_router_gate_weight", "gauge", "Gate weight by place (0 is the first choice), mean over the window's tokens.");
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    for (std::uint32_t place = 0; place < view.grid.experts_per_token; ++place)
      page.sample({{"layer", layer}, {"place", place}}, view.router[layer].gate_weight[place]);
  by_layer(page, layers, "althing_router_logit_variance", "Variance over experts of the router's logits, mean over the window's tokens.",
           [&](std::uint32_t l) { return view.router[l].logit_variance; });
  by_layer(page, layers, "althing_router_top1_margin", "Largest router logit over the second, mean over the window's tokens.",
           [&](std::uint32_t l) { return view.router[l].top1_margin; });
}

void add_weights(PageText& page, const ExpertView& view) {
  page.family("althing_weight_bytes_total", "counter", "Bytes of weights that steps read, on all ranks together. Computed, not measured.");
  page.sample({}, view.weight_bytes);
}

std::vector<LoadFigures> loads_of(const ExpertView& view) {
  std::vector<LoadFigures> loads;
  for (std::uint32_t layer = 0; layer < view.grid.layers; ++layer) loads.push_back(load_figures(layer_of(view.window, layer, view.grid.experts)));
  return loads;
}

// JSON has no infinity.
void append_json(std::string& text, double number) {
  if (!std::isfinite(number)) {
    text += "null";
  } else {
    append_number(text, number);
  }
}
void append_json(std::string& text, std::uint64_t number) { append_number(text, number); }

template <class NumberOf>
void append_list(std::string& text, std::size_t count, NumberOf number_of) {
  text += '[';
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) text += ',';
    append_json(text, number_of(i));
  }
  text += ']';
}

template <class NumberOf>
void append_table(std::string& text, std::size_t rows, std::size_t columns, NumberOf number_of) {
  text += '[';
  for (std::size_t row = 0; row < rows; ++row) {
    if (row > 0) text += ',';
    append_list(text, columns, [&](std::size_t column) { return number_of(row, column); });
  }
  text += ']';
}

void append_named(std::string& text, const ExpertView& view, const std::vector<LoadFigures>& loads) {
  std::string hot, dead;
  for (std::size_t layer = 0; view.whole_window && layer < loads.size(); ++layer)
    for (std::size_t expert = 0; expert < view.grid.experts; ++expert) {
      const double tokens = static_cast<double>(view.window[layer * view.grid.experts + expert]);
      std::string& list = tokens == 0 ? dead : hot;
      if (tokens > 0 && tokens <= hot_factor * loads[layer].mean) continue;
      list.append(list.empty() ? "[" : ",[");
      append_number(list, std::uint64_t{layer});
      list += ',';
      append_number(list, std::uint64_t{expert});
      if (tokens > 0) {
        list += ',';
        append_number(list, tokens / (loads[layer].mean * view.grid.experts));
      }
      list += ']';
    }
  text.append(",\"hot\":[").append(hot).append("],\"dead\":[").append(dead).append("]");
}

}  // namespace

ExpertPage summary_page(const ExpertView& view) {
  PageText page;
  add_experts(page, view, loads_of(view));
  add_ranks(page, view);
  add_router(page, view);
  add_weights(page, view);
  return page.take();
}

ExpertPage all_experts_page(const ExpertView& view, std::uint32_t series_max) {
  const std::uint32_t layers = view.grid.layers, experts = view.grid.experts;
  const std::size_t cells = 2 * std::size_t{layers} * experts + 1, slots = view.slot_tokens.size() * layers;
  const bool off = cells > series_max, with_slots = cells + slots <= series_max;
  PageText page;
  page.reserve(off ? 1024 : (cells + slots) * 80);
  if (off)
    page.comment(std::to_string(layers) + " layers of " + std::to_string(experts) + " experts make " + std::to_string(cells) +
                 " series, and --expert-series-max is " + std::to_string(series_max) + ": raise it, or read /experts.json");
  if (!off && !with_slots)
    page.comment("tokens by slot are left out: with " + std::to_string(slots) + " more series the page would pass --expert-series-max " +
                 std::to_string(series_max));
  const auto by_expert = [&](std::string_view name, std::string_view help, const auto& numbers) {
    page.family(name, "counter", help);
    for (std::uint32_t layer = 0; layer < layers; ++layer)
      for (std::uint32_t expert = 0; expert < experts; ++expert)
        page.sample({{"layer", layer}, {"expert", expert}}, numbers[std::size_t{layer} * experts + expert]);
  };
  if (!off) by_expert("althing_expert_gate_weight_total", "Gate weights with which tokens chose the expert, summed.", view.gate_weights);
  if (with_slots) {
    page.family("althing_expert_slot_tokens_total", "counter", "Tokens that a copy of an expert took, by the rank and the slot that held it.");
    for (std::uint32_t layer = 0; layer < layers; ++layer)
      for (const auto& [key, tokens] : view.slot_tokens)
        page.sample({{"layer", layer}, {"expert", key.expert}, {"rank", key.rank}, {"slot", key.slot}}, tokens[layer]);
  }
  page.family("althing_expert_tier_disabled", "gauge", "1 when the series an expert would be more than --expert-series-max.");
  page.sample({}, std::uint64_t{off});
  if (!off) by_expert("althing_expert_tokens_total", "Tokens that an expert took, over all its copies.", view.expert_tokens);
  return page.take();
}

std::string experts_json(const ExpertView& view) {
  const std::uint32_t layers = view.grid.layers, experts = view.grid.experts, ranks = view.grid.ranks;
  const std::vector<LoadFigures> loads = loads_of(view);
  std::string text;
  text.reserve(std::size_t{layers} * experts * 16 + 4096);
  const auto number = [&](const char* name, std::uint64_t value) { append_number(text.append(name), value); };
  number("{\"layers\":", layers);
  number(",\"experts\":", experts);
  number(",\"top_k\":", view.grid.experts_per_token);
  number(",\"epoch\":", view.epoch);
  number(",\"first_epoch\":", view.first_epoch);
  number(",\"steps\":", view.steps);
  number(",\"tokens\":", view.tokens);
  text += view.whole_window ? ",\"window_whole\":true" : ",\"window_whole\":false";
  text += ",\"window\":";
  append_table(text, layers, experts, [&](std::size_t l, std::size_t e) { return view.window[l * experts + e]; });
  text += ",\"total\":";
  append_table(text, layers, experts, [&](std::size_t l, std::size_t e) { return view.expert_tokens[l * experts + e]; });
  text += ",\"per_rank\":";
  append_table(text, ranks, layers, [&](std::size_t rank, std::size_t l) { return view.rank_tokens[l * ranks + rank]; });
  text += ",\"imbalance\":";
  append_list(text, layers, [&](std::size_t l) { return loads[l].imbalance; });
  text += ",\"active\":";
  append_list(text, layers, [&](std::size_t l) { return view.active[l]; });
  text += ",\"saturation_minutes\":";
  append_list(text, layers, [&](std::size_t l) { return view.saturation_minutes[l]; });
  append_named(text, view, loads);
  text += "}\n";
  return text;
}

}  // namespace althing::monitoring
