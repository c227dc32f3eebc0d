"""What transformers computes in float32 from FOLDER/hf: the file that model_reference reads.

    reference.safetensors  tokens i64 [T]; greedy i64 [G]: what greedy decoding appends; logits f32 [T, vocabulary]; router_logits f32 [layers, T, experts];
                           hidden f32 [layers + 1, T, hidden]: the input of each layer, then the output of the final norm

transformers' own classes do the arithmetic, eager and in float32 throughout (no TF32), on the exact values of the checkpoint. The experts stay in MXFP4 and are
dequantised layer by layer into two buffers as the pass reaches them, so that 30 GB of GPU memory do for the 20b, where its float32 weights would take 84.

The prompt is the one of several random ones whose greedy tokens are the surest (the largest least margin to the second best token): with 200,000 words,
greedy tokens of most random prompts pass so close to others that rounding decides.
"""
import json
import os
import time

# Before transformers is imported: nothing may be fetched, neither files nor kernels.
os.environ.update(HF_HUB_OFFLINE='1', TRANSFORMERS_OFFLINE='1', USE_HUB_KERNELS='0', TOKENIZERS_PARALLELISM='false')

import safetensors  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from transformers import GptOssConfig, GptOssForCausalLM  # noqa: E402

FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
IDS_BELOW = 199000  # control tokens are above


class Checkpoint:
    """Tensors of a folder with an index, by name."""

    def __init__(self, folder):
        names = json.loads((folder / 'model.safetensors.index.json').read_text())['weight_map']
        opened = {file: safetensors.safe_open(str(folder / file), 'pt') for file in set(names.values())}
        self.shards = {name: opened[file] for name, file in names.items()}
        self.unread = set(names)

    def take(self, name, device):
        self.unread.discard(name)
        return self.shards[name].get_tensor(name).to(device)


class Experts:
    """The MXFP4 matrices of one layer and the module that wants them."""

    def __init__(self, checkpoint, prefix, device):
        self.packed = {matrix: (checkpoint.take(f'{prefix}{matrix}_blocks', device), checkpoint.take(f'{prefix}{matrix}_scales', device))
                       for matrix in ('gate_up_proj', 'down_proj')}

    def into(self, module, buffers):
        for matrix, (blocks, scales) in self.packed.items():
            for expert in range(blocks.shape[0]):
                buffers[matrix][expert].copy_(dequantised(blocks[expert], scales[expert]).T)  # transformers keeps (in, out)
            module._parameters[matrix] = torch.nn.Parameter(buffers[matrix], requires_grad=False)


def dequantised(blocks, scales):
    """(out, groups, 16) bytes and (out, groups) exponents to (out, in)."""
    table = torch.tensor(FP4, dtype=torch.float32, device=blocks.device)
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1)  # (out, groups, 16, 2): the low nibble is the first
    values = table[codes.reshape(*scales.shape, 32).int()]
    powers = (scales.int() << 23).view(torch.float32)  # 2^(scale - 127) by its bits, exact on every device
    return (values * powers[..., None]).reshape(scales.shape[0], -1)


def load(folder, device, say):
    """GptOssForCausalLM with float32 parameters; those of the experts appear when a layer runs."""
    config = GptOssConfig.from_pretrained(folder)
    if hasattr(config, 'quantization_config'):
        del config.quantization_config
    config._attn_implementation, config._experts_implementation = 'eager', 'eager'
    checkpoint = Checkpoint(folder)
    with torch.device('meta'):
        model = GptOssForCausalLM(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)  # made outside of `meta`: its frequencies are no weights
    hidden, inner, count = config.hidden_size, config.intermediate_size, config.num_local_experts
    buffers = {'gate_up_proj': torch.empty(count, hidden, 2 * inner, device=device), 'down_proj': torch.empty(count, inner, hidden, device=device)}
    for name, parameter in list(model.named_parameters()):
        path, _, leaf = name.rpartition('.')
        module = model.get_submodule(path)
        if path.endswith('experts') and not leaf.endswith('_bias'):
            if leaf == 'gate_up_proj':
                module.register_forward_pre_hook(fill_of(Experts(checkpoint, path + '.', device), buffers))
            continue
        value = checkpoint.take(name, device).float()
        assert value.shape == parameter.shape, (name, value.shape, parameter.shape)
        module._parameters[leaf] = torch.nn.Parameter(value, requires_grad=False)
    assert not checkpoint.unread, f'tensors that transformers does not know: {sorted(checkpoint.unread)[:5]}'
    say(f'{folder}: loaded to {device}' + (f', {torch.cuda.memory_allocated(device) / 1e9:.1f} GB' if device.type == 'cuda' else ''))
    return model.eval()


def fill_of(experts, buffers):
    return lambda module, arguments: experts.into(module, buffers)


def surest_prompt(model, options, device, say):
    """(tokens, greedy) of the prompt whose least margin is the largest."""
    generator = torch.Generator().manual_seed(options.seed)
    count = options.candidates or (32 if device.type == 'cuda' else 2)
    ids = torch.randint(0, min(IDS_BELOW, options.vocabulary), (count, options.tokens), generator=generator).to(device)
    margins = torch.full((count,), torch.inf, device=device)
    for number in range(options.greedy):
        best = model(ids, use_cache=False, logits_to_keep=1).logits[:, 0].topk(2)
        margins = torch.minimum(margins, best.values[:, 0] - best.values[:, 1])
        ids = torch.cat((ids, best.indices[:, :1]), 1)
        say(f'greedy token {number + 1} of {count} prompts')
    chosen = int(margins.argmax())
    say(f'prompt {chosen}: its greedy tokens {ids[chosen, options.tokens:].tolist()} have margins of at least {margins[chosen]:.3f} '
        f'(median of the prompts {margins.median():.3f})')
    return ids[chosen, :options.tokens], ids[chosen, options.tokens:]


def describe(logits, hidden, routers, routes, say):
    """Whether the checkpoint is a fair test: magnitudes, how clear the routing is, how many experts it uses."""
    sizes = [f'{layer.square().mean().sqrt():.2f}' for layer in hidden]
    say(f'logits: deviation {logits.std():.2f}; root mean square of hidden states: {" ".join(sizes)}')
    best = routers.sort(dim=-1, descending=True).values
    if routers.shape[-1] > routes:
        gaps = (best[..., routes - 1] - best[..., routes]) / routers.std()
        say(f'router: deviation {routers.std():.2f}; gaps behind the last chosen expert, in deviations: least {gaps.min():.4f}, '
            f'below 0.02: {(gaps < 0.02).sum()} of {gaps.numel()}, median {gaps.median():.2f}')
    used = [len(layer.topk(routes).indices.unique()) for layer in routers]
    first = best[..., :routes].softmax(-1)[..., 0]
    say(f'experts used in a layer: {min(used)} to {max(used)} of {routers.shape[-1]}; weight of the first: mean {first.mean():.2f}')


@torch.inference_mode()
def write_reference(options, say):
    torch.set_float32_matmul_precision('highest')
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    began = time.monotonic()
    model = load(options.folder / 'hf', device, say)
    tokens, greedy = surest_prompt(model, options, device, say)
    out = model(tokens[None], use_cache=False, output_hidden_states=True, output_router_logits=True)
    logits, hidden, routers = out.logits[0], torch.stack([layer[0] for layer in out.hidden_states]), torch.stack(list(out.router_logits))
    config = model.config
    assert logits.shape == (options.tokens, config.vocab_size), logits.shape
    assert hidden.shape == (config.num_hidden_layers + 1, options.tokens, config.hidden_size), hidden.shape
    assert routers.shape == (config.num_hidden_layers, options.tokens, config.num_local_experts), routers.shape
    assert all(bool(values.isfinite().all()) for values in (logits, hidden, routers)), 'not finite'
    assert int(logits[-1].argmax()) == int(greedy[0]), 'the passes of many prompts and of one disagree'
    describe(logits, hidden, routers, config.num_experts_per_tok, say)
    values = {'tokens': tokens, 'greedy': greedy, 'logits': logits, 'hidden': hidden, 'router_logits': routers}
    safetensors.torch.save_file({name: value.cpu().contiguous() for name, value in values.items()}, options.folder / 'reference.safetensors')
    say(f'{options.folder / "reference.safetensors"}: written, {time.monotonic() - began:.1f} s')
