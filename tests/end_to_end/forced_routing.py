"""Models whose router is forced, for tests: the tiny model with other router biases, so that chosen experts get every token of a layer, or none."""
import json
import pathlib
import shutil
import struct

from harness import TINY

ALWAYS, NEVER = 64.0, -64.0  # far beyond any logit of the model


def forced_model(folder, always=(), never=()):
    """Writes the tiny model to `folder` with these (layer, expert) forced, and returns the folder."""
    folder = pathlib.Path(folder)
    shutil.copytree(TINY, folder, dirs_exist_ok=True)
    weights = folder / 'model.safetensors'
    raw = bytearray(weights.read_bytes())
    size = struct.unpack_from('<Q', raw)[0]
    header = json.loads(raw[8:8 + size])
    for pairs, bias in ((always, ALWAYS), (never, NEVER)):
        for layer, expert in pairs:
            entry = header[f'model.layers.{layer}.mlp.router.bias']
            assert entry['dtype'] == 'BF16' and expert < entry['shape'][0], entry
            # bf16 is the upper half of a float32.
            at = 8 + size + entry['data_offsets'][0] + 2 * expert
            raw[at:at + 2] = struct.pack('<f', bias)[2:]
    weights.write_bytes(raw)
    return folder
