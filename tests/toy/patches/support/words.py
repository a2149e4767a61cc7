from . import base


def say(text):
    print(base.GREETING, text)
