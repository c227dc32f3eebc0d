#!/usr/bin/env python3
"""Writes a random checkpoint of exactly gpt-oss-20b's shapes, names, files and configs, and what transformers computes from it.

    python3 tests/gpu/full_size_checkpoint.py FOLDER [--layers N] [--experts N] [--seed S] [--original] [--reference]

    FOLDER/hf/                    Hugging Face layout: 3 shards and their index, 13.8 GB
    FOLDER/original/              --original: the same weights in the original layout, one file, another 13.8 GB
    FOLDER/reference.safetensors  --reference: see full_size_reference.py (needs torch, transformers and a GPU, or patience)

so that `model_reference --device cuda FOLDER` compares all of it. Needs numpy; FOLDER is best on a memory file system. The same arguments give the same bytes.

Only the routing is not plain noise. With random routers every twentieth choice is so close that bf16 and float32 take different experts, and a comparison
would measure those coin tosses. So each token's embedding holds a random signature, for each of a few groups of layers four experts, along directions that
are also the rows of the routers: four experts stand out clearly, other ones for each token, and all experts are used alike.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import random
import shutil
import sys
import time
import typing
import zlib

os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')  # its products run in all threads here at once
try:
    import numpy  # noqa: E402
except ImportError:  # main() says so, after --help had its turn
    numpy = None

TOKENIZER = pathlib.Path(__file__).resolve().parents[1] / 'data/o200k_base.tiktoken'
SLICE_BYTES = 16 << 20
ITEM_BYTES = {'BF16': 2, 'U8': 1}
ROUTES = 4              # experts a token
SIGNATURE_GROUPS = 2   # layers l, l + 2, l + 4, … read the same part of a signature
SIGNATURE_SHARE = 0.75  # of an embedding's energy
ROUTER_GAIN = 0.35      # logits of the experts that stand out are around 6 in the first layers, half of that in the last
BEGAN = time.monotonic()


MISSING, UNSUPPORTED, NO_ROOM = 3, 5, 6  # exit codes of the program itself, as README.md lists them


def fail(code, why):
    print(f'full_size_checkpoint.py: {why}', file=sys.stderr)
    sys.exit(code)


def say(text):
    print(f'[{time.monotonic() - BEGAN:6.1f} s] {text}', flush=True)


@dataclasses.dataclass(frozen=True)
class Part:
    """A tensor, or the rows of one: `fill(generator, first, rows)` gives rows from `first` on, as uint16 (bf16) or uint8."""
    name: str
    dtype: str
    shape: tuple
    fill: typing.Callable

    @property
    def row_bytes(self):
        return ITEM_BYTES[self.dtype] * math.prod(self.shape[1:])

    @property
    def bytes(self):
        return self.shape[0] * self.row_bytes


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of a file: one part, or several below each other."""
    name: str
    parts: tuple

    @property
    def shape(self):
        return [sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:]]

    @property
    def bytes(self):
        return sum(part.bytes for part in self.parts)


def to_bf16(values):
    """float32 to the bits of bf16, rounded to nearest even. Overwrites `values`."""
    bits = values.view(numpy.uint32)
    bits += ((bits >> 16) & 1) + numpy.uint32(0x7FFF)
    return (bits >> 16).astype(numpy.uint16)


def generator_of(seed, name, first=0):
    return numpy.random.Generator(numpy.random.SFC64([seed, zlib.crc32(name.encode()), first]))


class Weights:
    """The parts of a model. Magnitudes keep the residual stream, the router's gaps and the logits (deviation about 2) as trained models have them."""

    def __init__(self, options):
        self.o = options
        directions = generator_of(options.seed, 'directions').standard_normal((SIGNATURE_GROUPS * options.experts, options.hidden), numpy.float32)
        self.directions = directions / numpy.sqrt(numpy.mean(directions ** 2, axis=1, keepdims=True))

    def normal(self, name, shape, deviation, mean=0.0):
        def fill(generator, first, rows):
            values = generator.standard_normal((rows, *shape[1:]), numpy.float32)
            values *= numpy.float32(deviation)
            values += numpy.float32(mean)
            return to_bf16(values)
        return Part(name, 'BF16', shape, fill)

    def codes(self, name, shape):
        """MXFP4 blocks: all 16 codes alike, root mean square 2.93."""
        def fill(generator, first, rows):
            words = generator.integers(0, 2 ** 64 - 1, -(-rows * math.prod(shape[1:]) // 8), numpy.uint64, endpoint=True)
            return words.view(numpy.uint8)[:rows * math.prod(shape[1:])]
        return Part(name, 'U8', shape, fill)

    def scales(self, name, shape, exponent):
        """MXFP4 scales: 2^exponent for half of the groups, half or twice that for a quarter each."""
        table = numpy.array([126, 127, 127, 128], numpy.uint8) + numpy.uint8(exponent % 256)

        def fill(generator, first, rows):
            return table[generator.integers(0, 4, rows * math.prod(shape[1:]), numpy.uint8)]
        return Part(name, 'U8', shape, fill)

    def embedding(self, name):
        """Noise and signature: in each group four experts with coefficients around 1."""
        experts, hidden = self.o.experts, self.o.hidden
        routes = min(ROUTES, experts)
        coefficients = numpy.linspace(1.2, 0.9, routes, dtype=numpy.float32) * math.sqrt(SIGNATURE_SHARE / SIGNATURE_GROUPS / routes)

        def fill(generator, first, rows):
            chosen = numpy.argsort(generator.random((rows, SIGNATURE_GROUPS, experts), numpy.float32), axis=2)[:, :, :routes]
            mix = numpy.zeros((rows, SIGNATURE_GROUPS, experts), numpy.float32)
            numpy.put_along_axis(mix, chosen, numpy.broadcast_to(coefficients, chosen.shape), axis=2)
            values = generator.standard_normal((rows, hidden), numpy.float32)
            values *= numpy.float32(math.sqrt(1 - SIGNATURE_SHARE))
            values += mix.reshape(rows, -1) @ self.directions
            return to_bf16(values)
        return Part(name, 'BF16', (self.o.vocabulary, hidden), fill)

    def router(self, name, layer):
        """Rows along the layer's directions, in an order of its own."""
        experts, hidden = self.o.experts, self.o.hidden

        def fill(generator, first, rows):
            order = generator.permutation(experts) + experts * (layer % SIGNATURE_GROUPS)
            values = self.directions[order] + 0.2 * generator.standard_normal((experts, hidden), numpy.float32)
            values *= numpy.float32(ROUTER_GAIN / math.sqrt(hidden))
            return to_bf16(values)
        return Part(name, 'BF16', (experts, hidden), fill)

    def layer(self, layer):
        """By short name."""
        o, at = self.o, f'{layer}.'
        width, q_rows, kv_rows = 1 / math.sqrt(o.hidden), o.heads * o.head_dim, o.kv_heads * o.head_dim
        # MXFP4 values of scale 2^-7 have the deviation of a width of 2880; other widths get the nearest power of two.
        # Outputs (down by an eighth, out by 0.4) are smaller, so that 24 layers double the residual stream instead of burying the signature.
        up, down = (round(math.log2(53.67 / 128 / math.sqrt(size))) for size in (o.hidden, o.intermediate))
        parts = {
            'attention_norm': self.normal(at + 'attention_norm', (o.hidden,), 0.1, 1.0),
            'moe_norm': self.normal(at + 'moe_norm', (o.hidden,), 0.1, 1.0),
            'q': self.normal(at + 'q', (q_rows, o.hidden), width),
            'k': self.normal(at + 'k', (kv_rows, o.hidden), width),
            'v': self.normal(at + 'v', (kv_rows, o.hidden), width),
            'out': self.normal(at + 'out', (o.hidden, q_rows), 0.4 / math.sqrt(q_rows)),
            'router': self.router(at + 'router', layer),
            'gate_up_blocks': self.codes(at + 'gate_up_blocks', (o.experts, 2 * o.intermediate, o.hidden // 32, 16)),
            'gate_up_scales': self.scales(at + 'gate_up_scales', (o.experts, 2 * o.intermediate, o.hidden // 32), up),
            'down_blocks': self.codes(at + 'down_blocks', (o.experts, o.hidden, o.intermediate // 32, 16)),
            'down_scales': self.scales(at + 'down_scales', (o.experts, o.hidden, o.intermediate // 32), down - 3),
            'sinks': self.normal(at + 'sinks', (o.heads,), 0.5),
        }
        for name, shape in {'q_bias': (q_rows,), 'k_bias': (kv_rows,), 'v_bias': (kv_rows,), 'out_bias': (o.hidden,), 'router_bias': (o.experts,),
                            'gate_up_bias': (o.experts, 2 * o.intermediate), 'down_bias': (o.experts, o.hidden)}.items():
            parts[name] = self.normal(at + name, shape, 0.1)
        return parts

    def model(self):
        """Embedding, norm and head."""
        o = self.o
        return {'embedding': self.embedding('embedding'), 'norm': self.normal('norm', (o.hidden,), 0.1, 1.0),
                'head': self.normal('head', (o.vocabulary, o.hidden), 2 / math.sqrt(o.hidden))}


HUGGING_FACE = {
    'input_layernorm.weight': 'attention_norm', 'post_attention_layernorm.weight': 'moe_norm',
    'self_attn.q_proj.weight': 'q', 'self_attn.q_proj.bias': 'q_bias', 'self_attn.k_proj.weight': 'k', 'self_attn.k_proj.bias': 'k_bias',
    'self_attn.v_proj.weight': 'v', 'self_attn.v_proj.bias': 'v_bias', 'self_attn.o_proj.weight': 'out', 'self_attn.o_proj.bias': 'out_bias',
    'self_attn.sinks': 'sinks', 'mlp.router.weight': 'router', 'mlp.router.bias': 'router_bias',
    'mlp.experts.gate_up_proj_blocks': 'gate_up_blocks', 'mlp.experts.gate_up_proj_scales': 'gate_up_scales',
    'mlp.experts.gate_up_proj_bias': 'gate_up_bias', 'mlp.experts.down_proj_blocks': 'down_blocks', 'mlp.experts.down_proj_scales': 'down_scales',
    'mlp.experts.down_proj_bias': 'down_bias',
}
ORIGINAL = {
    'attn.norm.scale': 'attention_norm', 'mlp.norm.scale': 'moe_norm', 'attn.qkv.weight': 'q k v', 'attn.qkv.bias': 'q_bias k_bias v_bias',
    'attn.out.weight': 'out', 'attn.out.bias': 'out_bias', 'attn.sinks': 'sinks', 'mlp.gate.weight': 'router', 'mlp.gate.bias': 'router_bias',
    'mlp.mlp1_weight.blocks': 'gate_up_blocks', 'mlp.mlp1_weight.scales': 'gate_up_scales', 'mlp.mlp1_bias': 'gate_up_bias',
    'mlp.mlp2_weight.blocks': 'down_blocks', 'mlp.mlp2_weight.scales': 'down_scales', 'mlp.mlp2_bias': 'down_bias',
}


def entries_of(model, layers, names, prefix, ends):
    """The tensors of a layout in its order. `ends`: its names of embedding, norm and head."""
    embedding, norm, head = ends
    entries = [Entry(embedding, (model['embedding'],))]
    for number, layer in enumerate(layers):
        entries += [Entry(prefix.format(number) + name, tuple(layer[part] for part in parts.split())) for name, parts in names.items()]
    return entries + [Entry(norm, (model['norm'],)), Entry(head, (model['head'],))]


def shard(entries, count):
    """[(file name, entries)], of about equal size, numbered as the published files are: from 0, and with the last number as the total."""
    total, at, shards = sum(entry.bytes for entry in entries), 0, {}
    for entry in entries:
        shards.setdefault(at * count // total, []).append(entry)
        at += entry.bytes
    return [(f'model-{number:05}-of-{len(shards) - 1:05}.safetensors', shards[key]) for number, key in enumerate(sorted(shards))]


class Files:
    """Open safetensors files whose headers are written; places: (part name, part, descriptor, byte of the part's first row)."""

    def __init__(self):
        self.descriptors, self.places, self.bytes = [], [], 0

    def add(self, path, entries):
        header, at, offsets = {'__metadata__': {'format': 'pt'}}, 0, []
        for entry in entries:
            header[entry.name] = {'dtype': entry.parts[0].dtype, 'shape': entry.shape, 'data_offsets': [at, at + entry.bytes]}
            for part in entry.parts:
                offsets.append((part, at))
                at += part.bytes
        text = json.dumps(header, separators=(',', ':')).encode()
        text += b' ' * (-len(text) % 8)
        descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o644)
        self.descriptors.append(descriptor)
        os.ftruncate(descriptor, 8 + len(text) + at)
        write_at(descriptor, len(text).to_bytes(8, 'little') + text, 0)
        self.places += [(part, descriptor, 8 + len(text) + offset) for part, offset in offsets]
        self.bytes += at

    def fill(self, seed, threads):
        """Makes each part once, slice by slice, and writes it to all its places."""
        places = {}
        for part, descriptor, offset in self.places:
            places.setdefault(part.name, (part, []))[1].append((descriptor, offset))
        work = []
        for part, targets in places.values():
            rows = max(1, SLICE_BYTES // part.row_bytes)
            work += [(part, targets, first, min(rows, part.shape[0] - first)) for first in range(0, part.shape[0], rows)]
        random.Random(0).shuffle(work)  # a file takes one writer at a time, so neighbours should be of different files
        written, shown = 0, time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for count in pool.map(lambda item: write_slice(seed, *item), work):
                written += count
                if time.monotonic() - shown > 2:
                    shown = time.monotonic()
                    say(f'{written / 1e9:.1f} of {self.bytes / 1e9:.1f} GB written')
        for descriptor in self.descriptors:
            os.close(descriptor)


def write_slice(seed, part, targets, first, rows):
    values = numpy.ascontiguousarray(part.fill(generator_of(seed, part.name, first), first, rows))
    assert values.nbytes == rows * part.row_bytes, (part.name, values.shape, values.dtype)
    for descriptor, offset in targets:
        write_at(descriptor, values.reshape(-1).view(numpy.uint8), offset + first * part.row_bytes)
    return values.nbytes * len(targets)


def write_at(descriptor, data, offset):
    left = memoryview(data)
    while left:
        count = os.pwrite(descriptor, left, offset)
        left, offset = left[count:], offset + count


def configs(o):
    """config.json in both spellings, and generation_config.json."""
    published = o.vocabulary == 201088
    special = {'eos_token_id': 200002 if published else o.vocabulary - 1, 'pad_token_id': 199999 if published else o.vocabulary - 2}
    routes = min(ROUTES, o.experts)
    hugging_face = {
        'architectures': ['GptOssForCausalLM'], 'attention_bias': True, 'attention_dropout': 0.0, 'experts_per_token': routes, 'head_dim': o.head_dim,
        'hidden_act': 'silu', 'hidden_size': o.hidden, 'initial_context_length': 4096, 'initializer_range': 0.02, 'intermediate_size': o.intermediate,
        'layer_types': ['sliding_attention' if layer % 2 == 0 else 'full_attention' for layer in range(o.layers)],
        'max_position_embeddings': 131072, 'model_type': 'gpt_oss', 'num_attention_heads': o.heads, 'num_experts_per_tok': routes,
        'num_hidden_layers': o.layers, 'num_key_value_heads': o.kv_heads, 'num_local_experts': o.experts, 'output_router_logits': False,
        'quantization_config': {'modules_to_not_convert': ['model.layers.*.self_attn', 'model.layers.*.mlp.router', 'model.embed_tokens', 'lm_head'],
                                'quant_method': 'mxfp4'},
        'rms_norm_eps': 1e-05, 'rope_scaling': {'beta_fast': 32.0, 'beta_slow': 1.0, 'factor': 32.0, 'original_max_position_embeddings': 4096,
                                                'rope_type': 'yarn', 'truncate': False},
        'rope_theta': 150000, 'router_aux_loss_coef': 0.9, 'sliding_window': 128, 'swiglu_limit': 7.0, 'tie_word_embeddings': False,
        'use_cache': True, 'vocab_size': o.vocabulary, **special}
    original = {
        'num_hidden_layers': o.layers, 'num_experts': o.experts, 'experts_per_token': routes, 'vocab_size': o.vocabulary, 'hidden_size': o.hidden,
        'intermediate_size': o.intermediate, 'swiglu_limit': 7.0, 'head_dim': o.head_dim, 'num_attention_heads': o.heads,
        'num_key_value_heads': o.kv_heads, 'sliding_window': 128, 'initial_context_length': 4096, 'rope_theta': 150000, 'rope_scaling_factor': 32.0,
        'rope_ntk_alpha': 1, 'rope_ntk_beta': 32}
    stops = [200002, 199999, 200012] if published else [special['eos_token_id']]
    return hugging_face, original, {'bos_token_id': min(199998, o.vocabulary - 3), 'do_sample': True, 'eos_token_id': stops,
                                    'pad_token_id': special['pad_token_id']}


def check_space(folder, needed):
    """Old files of this name count as free: they are cut to nothing first."""
    for path in [*folder.glob('hf/*.safetensors'), *folder.glob('original/*.safetensors'), *folder.glob('reference.safetensors')]:
        path.unlink()
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if free < needed:
        fail(NO_ROOM, f'{folder}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free; on a memory file system: mount -o remount,size=60g, '
             'or mount -t tmpfs -o size=60g tmpfs FOLDER')


def write_checkpoint(options):
    folder, weights = options.folder, Weights(options)
    model, layers = weights.model(), [weights.layer(number) for number in range(options.layers)]
    hugging_face = entries_of(model, layers, HUGGING_FACE, 'model.layers.{}.', ('model.embed_tokens.weight', 'model.norm.weight', 'lm_head.weight'))
    original = entries_of(model, layers, ORIGINAL, 'block.{}.', ('embedding.weight', 'norm.scale', 'unembedding.weight'))
    total = sum(entry.bytes for entry in hugging_face)
    folder.mkdir(parents=True, exist_ok=True)
    check_space(folder, total * (2 if options.original else 1) + (400 << 20 if options.reference else 16 << 20))
    config, original_config, generation = configs(options)

    files, shards = Files(), shard(hugging_face, 3)
    (folder / 'hf').mkdir(exist_ok=True)
    for name, entries in shards:
        files.add(folder / 'hf' / name, entries)
    index = {'metadata': {'total_size': total}, 'weight_map': {entry.name: name for name, entries in shards for entry in entries}}
    for name, content in {'config.json': config, 'generation_config.json': generation, 'model.safetensors.index.json': index}.items():
        (folder / 'hf' / name).write_text(json.dumps(content, indent=2) + '\n')
    if options.original:
        (folder / 'original').mkdir(exist_ok=True)
        files.add(folder / 'original' / 'model.safetensors', original)
        (folder / 'original' / 'config.json').write_text(json.dumps(original_config, indent=2) + '\n')
    if options.vocabulary == 201088 and TOKENIZER.exists():  # so that a server can open the folder
        for layout in ('hf', 'original') if options.original else ('hf',):
            shutil.copy(TOKENIZER, folder / layout)
    say(f'{len(files.descriptors)} files, {files.bytes / 1e9:.1f} GB, {options.threads} threads')
    files.fill(options.seed, options.threads)
    say(f'{folder}: {len(hugging_face)} tensors, {total} bytes of weights{", in both layouts" if options.original else ""}')


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--original', action='store_true', help='also in the original layout')
    parser.add_argument('--reference', action='store_true', help='also compute reference.safetensors with transformers')
    parser.add_argument('--only-reference', action='store_true', help='FOLDER/hf is there already')
    parser.add_argument('--threads', type=int, default=min(16, os.cpu_count() or 1))
    sizes = {'layers': 24, 'experts': 32, 'hidden': 2880, 'intermediate': 2880, 'heads': 64, 'kv-heads': 8, 'head-dim': 64, 'vocabulary': 201088}
    for name, size in sizes.items():
        parser.add_argument('--' + name, type=int, default=size)
    parser.add_argument('--tokens', type=int, default=96, help='of the prompt of the reference; over 128 the sliding windows slide')
    parser.add_argument('--greedy', type=int, default=8, help='tokens that the reference appends')
    parser.add_argument('--candidates', type=int, default=0, help='prompts to choose from; 0: 32 on a GPU, 2 elsewhere')
    options = parser.parse_args()
    if options.hidden % 32 or options.intermediate % 32:
        parser.error('--hidden and --intermediate must be multiples of 32, the group of MXFP4')
    return options


def main():
    options = parse()
    if numpy is None and not options.only_reference:
        fail(UNSUPPORTED, 'numpy is not installed for this Python; apt-get install python3-numpy, or pip install numpy')
    if options.only_reference and not (options.folder / 'hf/model.safetensors.index.json').exists():
        fail(MISSING, f'{options.folder}/hf holds no checkpoint; leave --only-reference out to write one')
    if options.reference or options.only_reference:
        # Before gigabytes are written: torch is needed for this alone.
        try:
            import full_size_reference
        except ImportError as error:
            fail(UNSUPPORTED, f'a reference needs torch, transformers and safetensors, and {error.name} is not installed for this Python')
    if not options.only_reference:
        write_checkpoint(options)
    if options.reference or options.only_reference:
        full_size_reference.write_reference(options, say)


if __name__ == '__main__':
    main()
