"""The state of PyTorch's generators, of the CPU and of the current GPU."""

import base64
import hashlib

import torch

from easyddl.backends.base import Backend


class TorchRandomStates(Backend):
    """Random numbers of a `TorchBackend`."""

    def random_state(self):
        states = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        return _encoded(states)

    def set_random_state(self, captured):
        for name, text in captured.items():
            state = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
            if name == "cpu":
                torch.set_rng_state(state)
            elif torch.cuda.is_available():
                torch.cuda.set_rng_state(state)

    def random_state_of_another_rank(self, captured, distance):
        if distance == 0:
            return captured
        words = hashlib.sha256(f"{sorted(captured.items())} {distance}".encode()).digest()
        seed = int.from_bytes(words[:8], "little", signed=True)
        generators = {name: torch.Generator(device=name).manual_seed(seed) for name in captured}
        return _encoded({name: each.get_state() for name, each in generators.items()})

    def draw_seed(self):
        return int(torch.randint(2**31, ()))


def _encoded(states):
    return {name: base64.b64encode(s.numpy().tobytes()).decode() for name, s in states.items()}
