"""unpack_xz.py FROM.xz TO: unpacks one file, without the xz program."""
import lzma
import os
import shutil
import sys

source, target = sys.argv[1:]
os.makedirs(os.path.dirname(target), exist_ok=True)
with lzma.open(source) as packed, open(target + ".part", "wb") as unpacked:
    shutil.copyfileobj(packed, unpacked)
os.replace(target + ".part", target)
