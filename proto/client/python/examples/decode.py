"""Two streams of random-looking tokens through layer LAYER of MODEL, a step of each under way at the same time. With PATH, MODEL is loaded
from there first. Layers with TOP_K experts a token; 0: a dense layer.

    decode.py MODEL LAYER TOP_K STEPS [PATH]
"""
import sys

import fp9

STREAMS = 2


def show(progress):
    print("{phase}: {done_bytes} of {total_bytes} bytes".format(**progress), file=sys.stderr)


def begin(session, layer, top_k, first):
    """Fills the shared memory in place and sends the step on its way."""
    places = session.places
    for i in range(session.hidden_size):
        places.x[0, i] = 0x3f00 + (i + first) % 128  # BF16 from 0.5 up
    for k in range(top_k):
        places.topk_ids[0, k] = k
        places.topk_weights[0, k] = 1 / top_k
    return session.start("decode", layer, tokens=1, top_k=top_k)


def main(model, layer, top_k, steps, path=None):
    layer, top_k, steps = int(layer), int(top_k), int(steps)
    with fp9.connect() as conn:
        if path:
            conn.model_load(path, name=model, progress=show)
        sessions = [conn.session_open(model, max_tokens=1, output_dtype="f32") for _ in range(STREAMS)]
        for number in range(steps):
            under_way = [begin(session, layer, top_k, stream + number) for stream, session in enumerate(sessions)]
            outputs = [step.wait().y for step in under_way]
        for stream, y in enumerate(outputs):
            print(f"stream {stream}: {steps} steps, y[0] = {y[0, 0]:g}")


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except fp9.Error as error:
        sys.exit(str(error))
