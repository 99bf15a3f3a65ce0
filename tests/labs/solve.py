"""Answers to the questions of answers.txt, computed without the program from what the questions say."""
import re
import struct


def numbers(text):
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)]


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def shortest(value):
    return f"{value:.10g}"


def ring(text):
    ranks, chunk = map(int, re.search(r"(\d+) ranks sum one float each, all in chunk (\d+)", text).groups())
    values = numbers(re.search(r"# The values:(.*?)\(", text)[1])
    order = [(chunk + k) % ranks for k in range(ranks)]

    def total(ranks_in_order):
        result = 0.0
        for rank in ranks_in_order:
            result = float32(result + values[rank])
        return shortest(result)
    return {"order": " ".join(map(str, order)), "ring_sum": total(order), "rank_order_sum": total(range(ranks)),
            "equal_up_to": "2"}


SOLVERS = {3: ring}


def answers(lab, text):
    return SOLVERS[lab](text)
