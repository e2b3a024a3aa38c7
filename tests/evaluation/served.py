"""What a vLLM server answers, for the fixture `server`."""

MODELS = {
    "data": [
        {"id": "tiny", "root": "/models/tiny", "max_model_len": 40},
        {"id": "lora", "root": "x", "max_model_len": None},
    ]
}


def completions(texts: list[str], tokenizer):
    """An answer with these completions, whose order the index gives."""

    def answer(body):
        choices = [
            {"index": index, "text": "of vLLM", "token_ids": tokenizer(text)["input_ids"], "finish_reason": "stop"}
            for index, text in enumerate(texts)
        ]
        return 200, {"choices": choices[::-1]}

    return answer


def failure(status: int):
    return lambda body: (status, {"error": {"message": f"failure {status}"}})
