"""A store that needs no PyTorch: speaks as ``coadapt.torch.elastic.rendezvous_process`` does, and keeps its keys as files in $PYTHON_MEETING."""

import json
import os
import sys
from pathlib import Path

directory = os.environ["PYTHON_MEETING"]
print(json.dumps({"port": 1}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["ask"] == "there":
        paths = [f"{directory}/{asked['restarts']}-{key.replace('/', '-')}" for key in asked["keys"]]
        answer = {"ok": True, "there": all(Path(path).exists() for path in paths)}
    else:
        path = f"{directory}/{asked['restarts']}-notice{asked['notice']['generation']}"
        with Path(f"{path}.tmp").open("w") as file:
            json.dump(asked["notice"], file)
        Path(f"{path}.tmp").rename(path)
        answer = {"ok": True}
    print(json.dumps(answer), flush=True)
