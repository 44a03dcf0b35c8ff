"""Write the golden files anew: `python -m tests.golden.make`. Only for a layout that was changed on purpose, with its VERSION."""

from tests.golden.codecs import CODECS
from tests.golden.frames import FOLDER, LANES, path


def main():
    for old in FOLDER.glob("*.bin"):
        old.unlink()
    for lane, messages in LANES.items():
        for name, value in messages.items():
            path(lane, name).write_bytes(CODECS[lane].encode(value))


if __name__ == "__main__":
    main()
