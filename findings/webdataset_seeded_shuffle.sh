#!/usr/bin/env bash
# webdataset 1.0.2: with a seed, .shuffle(n, seed=1) and WebDataset(shardshuffle=n, seed=1) give the SAME order in every epoch
# of one and the same object, also in a DataLoader's workers. Without one, no epoch is like another and neither
# torch.manual_seed nor random.seed makes it so. An rng=random.Random(1), and detshuffle=True for shards, do what one wants:
# another order in each epoch, the same in each run.
# One would guess that a seed makes runs repeatable and leaves epochs different, as DataLoader's generator, DistributedSampler
# with set_epoch and datasets' streaming shuffle do.
# It matters where trainings are seeded to be compared, which is how settings are proved equal: the seeded one sees its data
# in one order only, epoch after epoch, and loses some of its accuracy to it, which no throughput shows.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webdataset==1.0.2 numpy==2.4.6
cd "$folder"
venv/bin/python - 2>/dev/null <<'PY'
import io
import random
import sys
import tarfile

import webdataset

for shard in range(4):
    with tarfile.open(f"{shard}.tar", "w") as archive:
        for number in range(shard * 10, shard * 10 + 10):
            content = str(number).encode()
            entry = tarfile.TarInfo(f"{number:04d}.txt")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def shards(**more):
    return webdataset.WebDataset("{0..3}.tar", **more)


def differ(what: str, data) -> bool:
    epochs = [[int(sample["txt"]) for sample in data] for _ in range(4)]
    print(f"{what}: epochs begin with", [epoch[:4] for epoch in epochs], flush=True)
    return any(epoch != epochs[0] for epoch in epochs)


seeded = differ("shuffle(20, seed=1)", shards(shardshuffle=False).shuffle(20, seed=1))
seeded_shards = differ("shardshuffle=4, seed=1", shards(shardshuffle=4, seed=1))
random.seed(0)
unseeded = differ("shuffle(20)", shards(shardshuffle=False).shuffle(20))
rng = differ("shuffle(20, rng=Random(1))", shards(shardshuffle=False).shuffle(20, rng=random.Random(1)))
det = differ("shardshuffle=4, detshuffle=True, seed=1", shards(shardshuffle=4, detshuffle=True, seed=1))
expected = (seeded, seeded_shards, unseeded, rng, det) == (False, False, True, True, True)
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
