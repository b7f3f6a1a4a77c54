# threaded.py
import asyncio

import numpy as np
from ai_edge_litert.interpreter import Interpreter


class Classifier:
    def __init__(self, path: str) -> None:
        self._interpreter = Interpreter(path, num_threads=1)
        self._interpreter.allocate_tensors()
        self._input = self._interpreter.get_input_details()[0]["index"]
        self._output = self._interpreter.get_output_details()[0]["index"]
        self._lock = asyncio.Lock()  # an interpreter runs once at a time

    async def run(self, image: np.ndarray) -> np.ndarray:
        async with self._lock:
            return await asyncio.to_thread(self._invoke, image)

    def _invoke(self, image: np.ndarray) -> np.ndarray:
        self._interpreter.set_tensor(self._input, image)
        self._interpreter.invoke()
        return self._interpreter.get_tensor(self._output)
