"""A small server of the completions and chat protocol, on loopback, that answers with a real model."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch


class Server:
    """``trouble`` is taken from the front, one item a request: a status, "slow", "drop" or "nonsense"."""

    def __init__(self, language: Any) -> None:
        self.language, self.trouble, self.asked = language, [], []
        self.lock = threading.Lock()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.asked.append((self.path, dict(self.headers), body))
                    trouble = server.trouble.pop(0) if server.trouble else None
                if trouble == "drop":
                    self.close_connection = True
                    return
                if trouble == "slow":
                    time.sleep(0.6)
                if isinstance(trouble, int):
                    self.send_response(trouble)
                    self.end_headers()
                    return
                answer = b"<html>" if trouble == "nonsense" else json.dumps(server.answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the caller has given up
                    self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The next token's likeliest words, as the protocol wants them."""
        chat = path.endswith("/chat/completions")
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        ids = torch.tensor([self.language.tokenizer(prompt)["input_ids"]])
        with self.lock, torch.no_grad():
            logs = self.language.model(input_ids=ids).logits[0, -1].log_softmax(0)
        values, places = logs.topk(min(body["top_logprobs" if chat else "logprobs"], len(logs)))
        tokens = self.language.tokenizer.convert_ids_to_tokens(places.tolist())
        if chat:
            listed = [{"token": t, "logprob": v} for t, v in zip(tokens, values.tolist(), strict=True)]
            return {"choices": [{"logprobs": {"content": [{"top_logprobs": listed}]}}]}
        found = {" " + t: v for t, v in zip(tokens, values.tolist(), strict=True)}
        return {"choices": [{"index": 0, "text": tokens[0], "logprobs": {"top_logprobs": [found]}}]}


@contextlib.contextmanager
def serving(language: Any) -> Iterator[Server]:
    server = Server(language)
    thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
