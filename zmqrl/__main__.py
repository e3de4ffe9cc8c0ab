"""`python -m zmqrl` is the command `zmqrl`."""

import sys

from zmqrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
