"""Inserted by `quick_help`."""

import sys
import types

# torchvision imports torch's compiler, which takes as long as torch, to ask it one question. --help does not need it.
if __name__ == '__main__' and {'-h', '--help'}.intersection(sys.argv):
    sys.modules['torch._dynamo.utils'] = types.SimpleNamespace(is_compile_supported=None)
